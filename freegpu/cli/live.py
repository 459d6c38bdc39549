"""`doctor --live`: a one-line job through everything, on each platform, in a home that is thrown away.

The user's own ledger sees nothing of it, the store only a folder that goes away again; a platform's quota does, by minutes.
"""

from __future__ import annotations

import secrets
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freegpu.agent.stores.base import StoreError
from freegpu.cli.call import Call
from freegpu.cli.text import duration
from freegpu.errors import FreeGPUError

if TYPE_CHECKING:
    from freegpu.orchestrator.operations import Workspace
    from freegpu.orchestrator.rehearsal import Rehearsal
    from freegpu.orchestrator.views import Check

#: what the job may take once it runs, what a session may take to come, and the pause between looks, seconds
RUN_S, QUEUE_S, PAUSE_S = 120.0, 600.0, 0.5
#: a platform that holds up its session is told of again after so long, seconds
TELL_S = 15.0


def run(call: Call, workspace: Workspace, platform: str | None) -> Iterator[Check]:
    """One check a platform: its job was run, its output came back, and nothing was left."""
    for name in call.settings.platforms:
        if platform in (None, name):
            yield _rehearse(call, workspace, name)


def _check(name: str, ok: bool | None, detail: str, hint: str = "") -> Check:
    from freegpu.orchestrator.views import Check

    return Check(name=f"{name} live", ok=ok, detail=detail, hint=hint)


def _say(call: Call, words: str) -> None:
    """Progress, for people and programs alike, on stderr."""
    call.out.note(words)


def _rehearse(call: Call, workspace: Workspace, name: str) -> Check:
    from freegpu.orchestrator.rehearsal import Rehearsal

    try:
        if workspace.adapters[name].capabilities.attended:
            how = f"`freegpu cell {name}` and a small job try it"
            return _check(name, None, "a person starts its sessions, so none is rehearsed", how)
        with (
            tempfile.TemporaryDirectory(
                prefix="freegpu-live-", ignore_cleanup_errors=True
            ) as folder,
            Rehearsal(workspace, name, Path(folder), f"live-{secrets.token_hex(6)}") as rehearsal,
        ):
            refused = rehearsal.unseen() or _refusal(call, workspace, rehearsal, name)
            if refused:
                return _check(name, False, refused, _elsewhere(name))
            return _play(call, rehearsal, name, Path(folder))
    except (FreeGPUError, StoreError) as error:
        return _check(name, False, str(error), getattr(error, "hint", ""))


def _elsewhere(name: str) -> str:
    return f"`freegpu doctor {name}` without --live shows what it offers now"


def _refusal(call: Call, workspace: Workspace, rehearsal: Rehearsal, name: str) -> str:
    """Why it should not begin, "" if it may; says what it costs."""
    adapter = rehearsal.adapters[name]
    busy = [s for s in workspace.ledger.sessions(open_only=True) if s.platform == name]
    if not adapter.capabilities.here and len(busy) >= adapter.capabilities.max_concurrent:
        return f"{len(busy)} of your sessions run there, and it allows no more at once"
    offers = adapter.offers()
    if not offers:
        return "it offers nothing now"
    minutes = RUN_S / 60
    rates = {offer.pool: offer.rate for offer in offers if offer.pool}
    if not rates:
        _say(call, f"{name}: a one-line job of at most {minutes:g} minutes; it costs no quota")
        return ""
    if not all(offer.pool for offer in offers):
        rates[""] = 0.0
    told = ", ".join(
        f"{rate * minutes:g} minutes of {pool} quota" if pool else "none without a card"
        for pool, rate in sorted(rates.items())
    )
    _say(call, f"{name}: a one-line job; it costs at most {told}")
    left: dict[str, float] = {}
    for report in adapter.quota() or ():
        if report.limit_s is not None:
            left[report.pool] = report.limit_s - report.used_s
    with suppress(FreeGPUError):
        for balance in workspace.balances():
            if balance.platform == name and balance.left_s is not None:
                left[balance.pool] = min(balance.left_s, left.get(balance.pool, balance.left_s))
    if all(
        left.get(pool, RUN_S * rate) < RUN_S * rate for pool, rate in rates.items() if pool
    ) and ("" not in rates):
        most = max(left.values())
        return f"it would cost up to {minutes:g} minutes of quota, and {duration(max(0.0, most))} is left"
    return ""


def _play(call: Call, rehearsal: Rehearsal, name: str, folder: Path) -> Check:
    """Run the job; whatever happens, release what was taken before anybody hears of it."""
    word, begun = secrets.token_hex(8), call.now()
    spec = folder / "job.yaml"
    spec.write_text(
        f"name: doctor\nrun: echo {word}\nfreegpu: {{retry: {{failures: 0}}}}\n", encoding="utf-8"
    )
    outcome: tuple[str, str] = ("", "")
    with _signals() as quiet:
        try:
            rehearsal.lay_out()
            job = rehearsal.submit(spec, environ={}).jobs[0].id
            outcome = _wait(call, rehearsal, name, job, word)
        finally:
            quiet()
            remains = rehearsal.release(lambda words: _say(call, words))
            for sentence in remains:
                call.out.warn(f"not cleaned: {sentence}")
    card, failed = outcome
    if remains:
        failed = "; ".join((*([failed] if failed else ()), *remains))
    if failed:
        return _check(name, False, failed, _elsewhere(name))
    took = duration((call.now() - begun).total_seconds())
    return _check(name, True, f"ran a job on {card} and brought its output back in {took}")


def _wait(call: Call, rehearsal: Rehearsal, name: str, job: str, word: str) -> tuple[str, str]:
    """(card, "") when the job's output came back, ("", why not) otherwise."""
    begun, told_at, lives_since = call.now(), call.now(), None
    what = ""
    while True:
        ticked = rehearsal.tick(block=True, command="freegpu doctor --live")
        detail = rehearsal.show(job)
        view = detail.job
        if view.state == "succeeded":
            output = b"".join(chunk.data for chunk in rehearsal.log_chunks(job))
            return (
                (view.card, "") if word.encode() in output else ("", "its output did not come back")
            )
        ended = next((a for a in detail.attempts if a.reason), None)
        if ended is not None:
            return "", f"its session ended ({ended.reason}): {ended.detail or 'no reason known'}"
        if view.state not in ("pending", "active"):
            return "", f"the job is {view.state}: {view.why or 'no reason known'}"
        sessions = rehearsal.sessions()
        now = call.now()
        if not sessions and view.state == "pending" and (now - begun).total_seconds() > TELL_S:
            why = "; ".join(ticked.errors) or view.why or rehearsal.why(job).sentence
            return "", f"no session could be started: {why}"
        live = any(s.live_at is not None or s.raw_state == "running" for s in sessions)
        if live and lives_since is None:
            lives_since = now
        if lives_since is not None and (now - lives_since).total_seconds() > RUN_S:
            return "", f"the job did not end within {duration(RUN_S)}: {what}"
        if (now - begun).total_seconds() > QUEUE_S + (RUN_S if live else 0.0):
            return "", f"no session came within {duration(QUEUE_S)}: {what}"
        fresh = _what(name, sessions, live)
        if fresh != what or (now - told_at).total_seconds() >= TELL_S:
            what, told_at = fresh, now
            _say(call, f"{name}: {what}, {duration((now - begun).total_seconds())} so far")
        call.sleep(PAUSE_S)


def _what(name: str, sessions: list[Any], live: bool) -> str:
    """What is waited for."""
    if not sessions:
        return "looking for a place"
    if live:
        return "the session runs, waiting for the job's output"
    said = f" (it says {sessions[0].raw_state})" if sessions[0].raw_state else ""
    return f"waiting for the session on {name}{said}"


@contextmanager
def _signals() -> Iterator[Any]:
    """SIGTERM is like Ctrl-C. What is yielded makes both wait: cleaning must not be cut off half way."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.getsignal(number) for number in numbers}

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def quiet() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield quiet
    finally:
        for number, action in previous.items():
            signal.signal(number, action)
