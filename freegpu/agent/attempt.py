"""One attempt of a job, from its ticket to its `ended` event: the side that watches the process.

Decides when the command is started, paused, stopped and killed, and why it ended. It never touches the store
(cargo and logs do, in their own threads), so a store that hangs cannot delay a SIGTERM. Time comes from the
caller's clock; nothing here waits.
"""

from __future__ import annotations

import errno
import math
import signal
from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping, Optional

from freegpu.agent import cargo as cargo_module
from freegpu.agent import wire
from freegpu.agent.cargo import Cargo
from freegpu.agent.clock import Clock
from freegpu.agent.limits import Limits
from freegpu.agent.logs import LogShipper
from freegpu.agent.place import Place, environment, lay_companion
from freegpu.agent.process import Child, Start, write_script
from freegpu.agent.reasons import (
    CANCELLED,
    COMMAND_FAILED,
    COMPLETED,
    PREEMPTED,
    RESUME_REQUESTED,
    SESSION_EXPIRED,
    SUPERSEDED,
)

#: a later wish to stop replaces an earlier one if it stands further right
_STRENGTH = (SESSION_EXPIRED, PREEMPTED, SUPERSEDED, CANCELLED)
#: exit code by which a command says "saved, resume me"
RESUME_CODE = 75
#: nobody wants what a superseded attempt could still save: seconds between SIGTERM and SIGKILL
_SUPERSEDED_GRACE_S = 5.0
#: seconds for the last upload of an attempt that nobody waits for
_UNWANTED_UPLOAD_S = 30.0
#: a process that SIGKILL does not end hangs in the kernel; after this many seconds it is left there
_STUCK_S = 10.0

SETUP, RUNNING, PAUSED, STOPPING, ENDED = "setup", "running", "paused", "stopping", "ended"


@dataclass(frozen=True)
class Verdict:
    """Why an attempt ended."""

    reason: str
    exit_code: Optional[int]
    signal: Optional[int]


def judge(code: Optional[int], wish: str, *, ran: bool) -> Verdict:
    """What an exit means.

    `code` is the exit code, minus a signal's number, or None if there was no process; `wish` is why we
    asked it to stop ("" if we did not); `ran`: it was the command, not its setup.
    """
    number = None
    if code is not None and code < 0:
        number = -code
    elif code is not None and 128 < code <= 128 + 31:
        number = code - 128  # how a shell says that its command was killed
    exit_code = code if code is None or code >= 0 else None
    if ran and code == 0 and wish != CANCELLED:
        return Verdict(COMPLETED, exit_code, number)
    if wish:
        return Verdict(wish, exit_code, number)
    if ran and code == RESUME_CODE:
        return Verdict(RESUME_REQUESTED, exit_code, number)
    return Verdict(COMMAND_FAILED, exit_code, number)


def stronger(first: str, second: str) -> str:
    """Which of two wishes to stop is the one to report."""
    return max(first, second, key=lambda wish: _STRENGTH.index(wish) if wish in _STRENGTH else -1)


class Attempt:
    """`step` is called by the control thread only."""

    def __init__(
        self,
        ticket: wire.Run,
        slot: wire.Slot,
        place: Place,
        *,
        clock: Clock,
        limits: Limits,
        cargo: Cargo,
        logs: LogShipper,
        start: Start,
        secrets: Mapping[str, str],
        post: Callable[[str, Dict[str, Any]], object],
        wake_cargo: Callable[[], None],
        ship_logs: Callable[[], Callable[[], None]],
    ) -> None:
        self.ticket = ticket
        self.slot = slot
        self.place = place
        self.cargo = cargo
        self.logs = logs
        self._clock = clock
        self._limits = limits
        self._start = start
        self._secrets = secrets
        self._post = post
        self._wake_cargo = wake_cargo
        self._ship_logs = ship_logs
        self._wake_logs: Callable[[], None] = lambda: None
        self._child: Optional[Child] = None
        self._phase = ""
        self._ran = False
        self._began: Optional[float] = None
        self._seconds = 0.0
        self._wish = ""
        self._wish_urgent_by = math.inf
        self._kill_at = math.inf
        self._killed_at: Optional[float] = None
        self._verdict: Optional[Verdict] = None
        self._detail = ""
        self._upload_by: Optional[float] = None
        #: the attempt is over and its last event is posted
        self.ended = False
        #: the end reason, or "refused"; "" before
        self.outcome = ""

    # --- what others ask -----------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """fetching, restoring, setup, running, paused, stopping, saving or ended."""
        if self.ended:
            return ENDED
        if self._phase:
            return self._phase
        phase = self.cargo.phase
        return phase if phase == cargo_module.FETCHING else cargo_module.RESTORING

    def status(self) -> Dict[str, Any]:
        """For the heartbeat."""
        return {
            "slot": self.slot.index,
            "attempt": self.ticket.attempt,
            "job": self.ticket.job,
            "epoch": self.ticket.epoch,
            "phase": self.phase,
            "progress": self.logs.progress,
        }

    def view(self) -> Dict[str, Any]:
        """For a person who looks at the notebook: the heartbeat's words, and those that nobody else needs."""
        return {
            **self.status(),
            "name": self.ticket.name,
            "number": self.ticket.number,
            "card": self.slot.card,
            "checkpoint": self.cargo.checkpoint,
        }

    def stop(self, wish: str, upload_by: Optional[float] = None) -> None:
        """Let it save and end; `wish` is the end reason, `upload_by` when uploads must be over."""
        self._wish = stronger(self._wish, wish)
        if upload_by is not None:
            self._upload_by = min(upload_by, self._upload_by or math.inf)

    def acknowledge(self, generation: int) -> None:
        """The orchestrator has verified checkpoints up to this generation."""
        self.cargo.acknowledge(generation)

    def kill(self) -> None:
        """The session ends now: leave nothing behind, and no event either."""
        if self._child:
            self._child.release()
            self._child = None

    # --- the machine ---------------------------------------------------------------------------------

    def step(self) -> float:
        """Do what is due; the seconds until something may be due again."""
        now = self._clock.monotonic()
        if self.ended:
            return math.inf
        if not self._phase:
            return self._step_waiting(now)
        if self._phase == cargo_module.SAVING:
            return self._step_saving(now)
        return self._step_process(now)

    def _step_waiting(self, now: float) -> float:
        if now >= self._limits.kill - self.ticket.grace_s:
            self.stop(SESSION_EXPIRED)
        if self._wish:
            self.cargo.abandon()
            self._finish(judge(None, self._wish, ran=False))
            return 0.0
        if self.cargo.refusal:
            self.refuse(self.cargo.refusal)
            return 0.0
        if self.cargo.phase == cargo_module.READY:
            self._begin(SETUP if self.ticket.setup.strip() else RUNNING, now)
            return 0.0
        return max(0.0, self._limits.kill - self.ticket.grace_s - now)

    def refuse(self, detail: str) -> None:
        """It cannot be run here."""
        self.cargo.abandon()
        self._post(wire.REFUSED, {**self._names(), "detail": detail[:2000]})
        self._over("refused")

    def _begin(self, phase: str, now: float) -> None:
        script = self.place.root / ("setup.sh" if phase == SETUP else "run.sh")
        try:
            self.place.outputs.mkdir(parents=True, exist_ok=True)
            self.place.checkpoints(self.ticket.checkpoint_path).mkdir(parents=True, exist_ok=True)
            lay_companion(self.place.library)
            write_script(script, self.ticket.setup if phase == SETUP else self.ticket.run)
            self._child = self._start(
                script,
                self.place.source,
                self._environment(now),
                self.place.spool,
                strict=phase == SETUP,
            )
        except (OSError, ValueError) as error:
            # a checkpoint path that is a file, a NUL in the environment; a full disk is not the job's fault
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                self.refuse(f"the disk of this session is full: {error}")
                return
            self._detail = f"the command could not be started: {error}"
            self._finish(Verdict(COMMAND_FAILED, None, None))
            return
        if not self._began:
            self._wake_logs = self._ship_logs()
        self._began, self._phase = now, phase
        self._ran = phase == RUNNING
        if self._ran:
            step = self.cargo.base_step
            self._post(
                wire.STARTED,
                {**self._names(), "resumed": self.ticket.base is not None, "step": step},
            )
            self.cargo.watch()
            self._wake_cargo()

    def _step_process(self, now: float) -> float:
        child = self._child
        if child is None:
            self._finish(judge(None, self._wish, ran=False))
            return 0.0
        code = child.poll()
        if code is not None and not (self._phase == STOPPING and self._still_saving(child, now)):
            self._exited(child, code, now)
            return 0.0
        if self._phase == STOPPING:
            return self._step_stopping(child, now)
        stop_at = self._limits.stop(self.ticket.grace_s, self.cargo.upload_seconds)
        if now >= stop_at:
            self.stop(SESSION_EXPIRED)
        if self._wish:
            self._ask_to_stop(child, now)
            return 0.05
        self._pause_or_go_on(child)
        return stop_at - now

    def _still_saving(self, child: Child, now: float) -> bool:
        """The shell is gone, but what it had started in the background may use its grace to save."""
        return now < self._kill_at and child.alive()

    def _pause_or_go_on(self, child: Child) -> None:
        window = self.ticket.window
        if window is None or self._phase == SETUP:
            return
        ahead = self.cargo.unconfirmed > window
        if ahead and self._phase == RUNNING:
            child.signal(signal.SIGSTOP)
            self._phase = PAUSED
        elif not ahead and self._phase == PAUSED:
            child.signal(signal.SIGCONT)
            self._phase = RUNNING

    def _ask_to_stop(self, child: Child, now: float) -> None:
        child.signal(signal.SIGCONT)
        child.signal(signal.SIGTERM)
        # stopped between the look and the signal by the job itself, it would not read the SIGTERM
        child.signal(signal.SIGCONT)
        self._kill_at = min(now + self.ticket.grace_s, max(now, self._limits.kill))
        self._phase = STOPPING

    def _step_stopping(self, child: Child, now: float) -> float:
        if self._wish == SUPERSEDED:
            self._wish_urgent_by = min(self._wish_urgent_by, now + _SUPERSEDED_GRACE_S)
            self._kill_at = min(self._kill_at, self._wish_urgent_by)
        if now < self._kill_at:
            return min(0.1, self._kill_at - now)
        if self._killed_at is None:
            self._killed_at = now
        child.signal(signal.SIGKILL)
        if now - self._killed_at > _STUCK_S:
            self._detail = "the command hangs in the kernel and could not be killed"
            self._child = None
            self._seconds = now - (self._began or now)
            self._finish(judge(None, self._wish, ran=self._ran))
        return 0.05

    def _exited(self, child: Child, code: int, now: float) -> None:
        was_setup = not self._ran
        self._child = None
        child.release()
        if was_setup and code == 0 and not self._wish:
            self._begin(RUNNING, now)
            return
        self._seconds = now - (self._began or now)
        verdict = judge(code, self._wish, ran=self._ran)
        if verdict.reason == COMMAND_FAILED:
            self._detail = _describe(verdict, self.logs.tail(), setup=was_setup)
        self._finish(verdict)

    def _finish(self, verdict: Verdict) -> None:
        """The process is gone (or never was): save what it left, then tell."""
        now = self._clock.monotonic()
        self._verdict = verdict
        by = min(self._upload_by or math.inf, self._limits.end - 1.0)
        if verdict.reason in (CANCELLED, SUPERSEDED):
            by = min(by, now + _UNWANTED_UPLOAD_S)
        if self._ran:
            self.cargo.finish(
                save=verdict.reason != SUPERSEDED,
                results_first=verdict.reason == COMPLETED,
                clean=verdict.exit_code in (0, RESUME_CODE),
                deadline=None if math.isinf(by) else by,
            )
        else:
            self.cargo.abandon()
        self.logs.close(None if math.isinf(by) else by)
        self._wake_cargo()
        self._wake_logs()
        self._phase = cargo_module.SAVING
        self._upload_by = None if math.isinf(by) else by

    def _step_saving(self, now: float) -> float:
        by = self._upload_by if self._upload_by is not None else math.inf
        shipped = self.logs.done or self._began is None
        # a download that hangs is not waited for: nothing is to be saved
        home = self.cargo.phase == cargo_module.DONE or not self._ran
        if now < by + 1.0 and not (home and shipped):
            return min(1.0, max(0.05, by + 1.0 - now))
        if not home:  # an upload hangs; what it had not finished stays in the work folder
            self.cargo.trouble = self.cargo.missing("the session's time was up")
        verdict = self._verdict or Verdict(COMMAND_FAILED, None, None)
        reason, detail = verdict.reason, self._detail
        if reason == COMPLETED and self.cargo.results_missing:
            # a result that nobody can have is none: the job goes on from its newest checkpoint
            reason = SESSION_EXPIRED if now >= by else COMMAND_FAILED
        if self.cargo.trouble:
            detail = f"{detail}\n{self.cargo.trouble}".strip()
        self._post(
            wire.ENDED,
            {
                **self._names(),
                "reason": reason,
                "exit_code": verdict.exit_code,
                "signal": verdict.signal,
                "detail": detail[:2500],
                "outputs": self.cargo.outputs,
                "progress": self.logs.progress,
                "seconds": round(self._seconds, 3),
                "log_segments": self.logs.segments,
            },
        )
        self._over(reason)
        return 0.0

    def _over(self, outcome: str) -> None:
        self.ended, self.outcome = True, outcome
        self.logs.close(self._clock.monotonic())
        self.cargo.clear()
        self._wake_logs()
        self._wake_cargo()

    def _environment(self, now: float) -> Dict[str, str]:
        left = self._limits.kill - now
        deadline = None if math.isinf(left) else self._clock.time() + left
        return environment(self.ticket, self.slot, self.place, self._secrets, deadline)

    def _names(self) -> Dict[str, Any]:
        ticket = self.ticket
        return {"job": ticket.job, "attempt": ticket.attempt, "epoch": ticket.epoch}


def _describe(verdict: Verdict, tail: str, *, setup: bool) -> str:
    """Why a command failed, for people: its code or signal, and the last lines it printed."""
    what = f"exit code {verdict.exit_code}"
    if verdict.signal is not None:
        what = _signal_name(verdict.signal)
        if verdict.signal == signal.SIGKILL:
            what += " (often the machine ran out of memory)"
    head = f"setup: {what}" if setup else what
    return f"{head}\n{tail}".strip()[:2000]


def _signal_name(number: int) -> str:
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"killed by signal {number}"
