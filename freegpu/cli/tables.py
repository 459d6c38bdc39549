"""Platforms, sessions, jobs and attempts as lines of a table. Pure: used by every command that shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from freegpu.cli.text import (
    Column,
    Paint,
    ago,
    clip,
    clock,
    count,
    duration,
    number,
    safe,
    table,
    until,
)

if TYPE_CHECKING:
    from freegpu.orchestrator.model import Attempt, Progress
    from freegpu.orchestrator.views import JobView, PlatformView, SessionView, Status

#: pending jobs that `status` shows to a person; the rest is counted
SHOWN_PENDING = 20

STATE_STYLE: Mapping[str, str] = {
    "succeeded": "good",
    "failed": "bad",
    "cancelled": "dim",
    "active": "busy",
    "live": "good",
    "unknown": "warn",
}

Cell = str | tuple[str, str]
Rows = Sequence[Sequence[Cell]]

PLATFORM_COLUMNS = (
    Column(title="PLATFORM"),
    Column(title="CARD"),
    Column(title="USED / LEFT"),
    Column(title="RESETS"),
    Column(title="SOURCE"),
    Column(title="SESSIONS"),
    Column(title="NOTE", flex=True),
)
SESSION_COLUMNS = (
    Column(title="SESSION"),
    Column(title="PLATFORM"),
    Column(title="CARD"),
    Column(title="STATE"),
    Column(title="LEFT", right=True),
    Column(title="SLOT", right=True),
    Column(title="JOB", flex=True),
    Column(title="PHASE"),
    Column(title="GPU", right=True),
    Column(title="WHY", flex=True),
)
JOB_COLUMNS = (
    Column(title="JOB"),
    Column(title="NAME", flex=True),
    Column(title="STATE"),
    Column(title="WHERE"),
    Column(title="PROGRESS"),
    Column(title="LEFT", right=True),
    Column(title="SAVED", right=True),
    Column(title="HOPS", right=True),
    Column(title="WHY", flex=True),
)
ATTEMPT_COLUMNS = (
    Column(title="ATTEMPT"),
    Column(title="WHERE"),
    Column(title="STATE"),
    Column(title="BEGAN"),
    Column(title="RAN", right=True),
    Column(title="LOST", right=True),
    Column(title="BASE"),
    Column(title="DETAIL", flex=True),
)


def card(name: str, cards: int) -> str:
    """ "T4 x2", "L4", "" """
    return f"{name} x{cards}" if cards > 1 else name


def place(platform: str, card_name: str) -> str:
    """ "kaggle T4", "" before the first attempt."""
    return f"{platform} {card_name}".strip()


def platform_row(view: PlatformView, now: datetime) -> Sequence[Cell]:
    """One offer with its quota."""
    if not view.source:
        quota = "no limit"
    else:
        left = _learned_left(view)
        if view.left_s is not None:
            left = duration(view.left_s, days=False)
        quota = f"{duration(view.used_s or 0.0, days=False)} / {left}"
        if view.reserved_s:
            quota += f" ({duration(view.reserved_s, days=False)} reserved)"
    source = view.source
    if source and view.age_s is not None:
        source += f", {duration(view.age_s)} old" if view.age_s >= 60 else ", now"
    sessions = f"{view.open_sessions} of {view.max_concurrent}" if view.max_concurrent else ""
    known = (
        f"; as it was {duration((now - view.known_at).total_seconds())} ago"
        if view.known_at
        else ""
    )
    note = (
        f"{view.problem}{known}"
        if view.problem
        else ("a person must start it" if view.attended else "")
    )
    lasted = view.learned.session if view.learned else None
    if not view.problem and lasted is not None:
        note = f"{note}; " * bool(note) + f"sessions lasted {lasted.text}"
    elif not note and view.session_limit_s is not None:
        note = f"sessions of {duration(view.session_limit_s)}"
    return (
        view.name,
        card(view.card, view.count),
        quota,
        until(view.resets_at, now) if view.resets_at else "",
        source,
        sessions,
        (note, "warn" if view.problem else "dim"),
    )


def _learned_left(view: PlatformView) -> str:
    """What may be left where nobody publishes the limit: "2 h to 4 h (3 refusals)"; "?" before one was met."""
    known = view.learned.allowance if view.learned else None
    if known is None or known.low_s is None:
        return "?"
    used = (view.used_s or 0.0) + view.reserved_s
    low = duration(max(0.0, known.low_s - used), days=False)
    words = f"{low} or more"
    if known.high_s is not None:
        high = duration(max(0.0, known.high_s - used), days=False)
        words = low if low == high else f"{low} to {high}"
    return f"{words} ({count(known.observed, 'refusal')})"


def session_rows(view: SessionView) -> Rows:
    """A session: one row a slot, the session's own words on the first."""
    state = "silent" if view.silent else view.state
    style = "warn" if view.silent else STATE_STYLE.get(view.state, "")
    left = duration(view.left_s) if view.left_s is not None else "no limit"
    mine: Sequence[Cell] = (
        view.id,
        view.platform,
        card(view.card, view.count),
        (state, style),
        left,
    )
    use = {str(gpu.get("index", i)): gpu for i, gpu in enumerate(view.gpu)}
    rows: list[Sequence[Cell]] = []
    for slot in view.slots:
        job: Cell = f"{slot.job_name} ({slot.job})" if slot.job else ("free", "dim")
        phase = slot.phase
        if view.queue and not rows:
            phase = f"{phase} +{view.queue} queued".strip()
        why: Cell = (view.reason if not rows else "", "dim")
        rest = (str(slot.slot), job, phase, _use(use.get(str(slot.slot))), why)
        rows.append((*(mine if not rows else ("",) * len(mine)), *rest))
    return rows


def _use(gpu: Mapping[str, Any] | None) -> str:
    """How busy the card is, as the agent saw it last."""
    value = gpu.get("util") if gpu else None
    return f"{value:.0f} %" if isinstance(value, int | float) else ""


def progress(view: Progress) -> str:
    """ "120 of 4,000 (3 %)", "step 120", "" """
    if view.step is None:
        return ""
    if not view.total:
        return f"step {number(view.step)}"
    share = max(0.0, min(1.0, view.step / view.total))
    return f"{number(view.step)} of {number(view.total)} ({share * 100:.0f} %)"


def job_row(view: JobView, now: datetime) -> Sequence[Cell]:
    """A job in one line."""
    final = view.state in ("succeeded", "failed", "cancelled")
    saved = ""
    if view.checkpoint_at is not None and not final:
        saved = ago(view.checkpoint_at, now)
    return (
        view.id,
        view.name,
        (view.state, STATE_STYLE.get(view.state, "")),
        place(view.platform, view.card),
        progress(view.progress),
        duration(view.eta_s) if view.eta_s is not None else "",
        saved,
        str(view.hops) if view.hops else "",
        (view.reason or view.why, "dim"),
    )


def attempt_row(attempt: Attempt, now: datetime) -> Sequence[Cell]:
    """An attempt in one line."""
    reason = str(attempt.reason or "").replace("_", " ")
    ran = attempt.run_s
    if attempt.started_at is not None and attempt.ended_at is None:
        ran = (now - attempt.started_at).total_seconds()
    words = reason or str(attempt.state)
    if attempt.exit_code not in (None, 0, 75):
        words += f", exit {attempt.exit_code}"
    return (
        str(attempt.number),
        place(attempt.platform, attempt.card),
        (words, "bad" if reason == "command failed" else ""),
        clock(attempt.started_at) if attempt.started_at else "not yet",
        duration(ran) if attempt.started_at else "",
        duration(attempt.lost_s) if attempt.lost_s else "",
        f"{attempt.base_epoch}-{attempt.base_generation}" if attempt.base_epoch else "scratch",
        attempt.detail,
    )


def counts(found: Mapping[str, int]) -> str:
    """ "2 active, 5 pending, 3 succeeded" """
    order = ("active", "pending", "succeeded", "failed", "cancelled")
    words = [f"{found[state]:,} {state}" for state in order if found.get(state)]
    return ", ".join(words) or "no jobs yet"


def status_lines(
    status: Status, now: datetime, *, room: int | None = None, paint: Paint | None = None
) -> list[str]:
    """The whole picture as lines."""

    def title(words: str) -> str:
        return paint(words, "bold") if paint else words

    lines = [title("Platforms")]
    rows = [platform_row(view, now) for view in status.platforms]
    lines += table(PLATFORM_COLUMNS, rows, room=room, paint=paint) if rows else ["none configured"]
    sessions = [row for view in status.sessions for row in session_rows(view)]
    if sessions:
        lines += ["", title("Sessions")]
        lines += table(SESSION_COLUMNS, sessions, room=room, paint=paint)
    lines += ["", title("Jobs") + f"  {counts(status.counts)}"]
    shown, hidden = _shown(status.jobs)
    if shown:
        job_rows = [job_row(view, now) for view in shown]
        lines += table(JOB_COLUMNS, job_rows, room=room, paint=paint)
    if hidden:
        lines.append(f"... and {count(hidden, 'more pending job')}: freegpu jobs --state pending")
    if status.invitations:
        lines += ["", title("One click away")]
        lines += [
            f"{safe(one.platform)} {one.card}".strip() + f": {safe(one.sentence)}"
            for one in status.invitations
        ]
    lines += ["", _orchestrator(status.orchestrator, room)]
    return lines


def _shown(jobs: Sequence[JobView]) -> tuple[list[JobView], int]:
    """What a person wants to see first: running, then the next ones, then what ended lately."""
    running = [view for view in jobs if view.state == "active"]
    pending = [view for view in jobs if view.state == "pending"]
    ended = [view for view in jobs if view.state not in ("active", "pending")]
    return [*running, *pending[:SHOWN_PENDING], *ended], max(0, len(pending) - SHOWN_PENDING)


def _orchestrator(holder: str, room: int | None) -> str:
    words = (
        f"Orchestrator: {safe(holder)}"
        if holder
        else "No orchestrator is running: each command moves jobs on; `freegpu up` does it all the time"
    )
    return clip(words, room) if room is not None else words
