"""What a person sees under the cell while the agent works, as text and as HTML. Pure, but for its memory.

Knows only what view.json says. Times left of a job are reckoned from the steps seen here, so they are none in
the first moments and honest afterwards.
"""

from __future__ import annotations

from html import escape
from typing import Any, Dict, List, Mapping, Optional, Tuple

_BAR = 24
#: seconds of looking before a pace is worth telling
_LEAST_S = 5.0


class Show:
    """Turns one view after another into lines."""

    def __init__(self, platform: str, limit_s: Optional[float]) -> None:
        self._platform = platform
        self._limit_s = limit_s
        #: attempt -> (step, uptime) when it was first seen to move
        self._began: Dict[str, Tuple[float, float]] = {}

    def lines(self, view: Mapping[str, Any]) -> List[str]:
        """The whole picture, one line a fact."""
        found = [self._session(view)]
        for slot in view.get("slots") or ():
            found += self._job(slot, float(view.get("uptime_s") or 0.0))
        return found + _rest(view)

    def html(self, view: Mapping[str, Any]) -> str:
        """The same for a notebook, with real progress bars."""
        uptime = float(view.get("uptime_s") or 0.0)
        parts = [f"<b>{escape(self._session(view))}</b>"]
        for slot in view.get("slots") or ():
            lines = self._job(slot, uptime, bar=False)
            done = share(slot.get("progress"))
            bar = "" if done is None else f' <progress max="1" value="{done:.4f}"></progress>'
            parts.append(escape(lines[0]) + bar)
            parts += [escape(line) for line in lines[1:]]
        parts += [escape(line) for line in _rest(view)]
        return '<div style="font-family:monospace;line-height:1.6">' + "<br>".join(parts) + "</div>"

    def _session(self, view: Mapping[str, Any]) -> str:
        cards = list(view.get("cards") or ())
        names = ", ".join(
            f"{cards.count(c)} x {c}" if cards.count(c) > 1 else c for c in dict.fromkeys(cards)
        )
        found = [
            f"freegpu on {self._platform}: {names}",
            f"session {span(view.get('uptime_s') or 0)}",
        ]
        left = view.get("left_s")
        if left is not None:
            found.append(f"{span(left)} left")
        for use in view.get("gpu") or ():
            memory = f"{use.get('mem_used_mb', 0) / 1024:.1f} of {use.get('mem_total_mb', 0) / 1024:.1f} GB"
            found.append(f"GPU {use.get('util', 0)} %, {memory}")
        return " · ".join(found)

    def _job(self, slot: Mapping[str, Any], uptime: float, *, bar: bool = True) -> List[str]:
        told = {k: _number(v) for k, v in (slot.get("progress") or {}).items()}
        progress = {k: v for k, v in told.items() if v is not None}
        words = [
            f"{slot.get('name') or slot.get('job')} (attempt {slot.get('number')}) {slot.get('phase')}"
        ]
        step, total, done = progress.get("step"), progress.get("total"), share(progress)
        if step is not None:
            words.append(f"step {step:g}" + (f" of {total:g}" if total else ""))
        if done is not None:
            if bar:
                full = round(done * _BAR)
                words.append(f"[{'#' * full}{'.' * (_BAR - full)}]")
            words.append(f"{100 * done:.0f} %")
            left = self._left(str(slot.get("attempt")), float(step or 0), float(total or 0), uptime)
            if left is not None:
                words.append(f"about {span(left)} left")
        words += [f"{k} {v:.4g}" for k, v in progress.items() if k not in _PLACE][:3]
        return [" ".join(words), "  " + _saved(slot.get("checkpoint") or {})]

    def _left(self, attempt: str, step: float, total: float, uptime: float) -> Optional[float]:
        first = self._began.setdefault(attempt, (step, uptime))
        moved, passed = step - first[0], uptime - first[1]
        if moved <= 0 or passed < _LEAST_S:
            return None
        return max(0.0, total - step) * passed / moved


_PLACE = ("step", "total", "rate", "remaining_s", "at")


def _saved(checkpoint: Mapping[str, Any]) -> str:
    generation, confirmed = checkpoint.get("generation") or 0, checkpoint.get("confirmed") or 0
    if not generation:
        return f"saved: checkpoint {confirmed}, confirmed" if confirmed else "nothing saved yet"
    age = checkpoint.get("age_s")
    old = "" if age is None else f", its content {span(age)} old"
    word = (
        "confirmed"
        if confirmed >= generation
        else f"not confirmed yet (confirmed: {confirmed or 'none'})"
    )
    return f"saved: checkpoint {generation}{old}, {word}"


def _rest(view: Mapping[str, Any]) -> List[str]:
    found = [] if view.get("slots") else ["no job runs here now"]
    found.append(_queue(view))
    if view.get("notice"):
        found.append(f"note: {view['notice']}")
    away = view.get("away_s")
    if away is not None and away > 10:
        found.append(f"the store has not answered for {span(away)}; the job goes on meanwhile")
    return found


def _queue(view: Mapping[str, Any]) -> str:
    here, waiting = int(view.get("queued") or 0), view.get("waiting")
    if waiting is None:
        return "queue: nobody hands out work yet (`freegpu up` on your machine does)"
    more = here + int(waiting)
    return (
        f"queue: {more} more {'job waits' if more == 1 else 'jobs wait'}"
        if more
        else "queue: empty"
    )


def share(progress: Optional[Mapping[str, Any]]) -> Optional[float]:
    """How much of it is done, 0 to 1; None: it does not say."""
    told = progress or {}
    step, total = _number(told.get("step")), _number(told.get("total"))
    if step is None or total is None or total <= 0:
        return None
    return min(1.0, max(0.0, step / total))


def _number(value: Any) -> Optional[float]:
    """None unless it can be shown: jobs print NaN, infinities and anything else."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if fits and -1e300 <= value <= 1e300 else None


def span(seconds: float) -> str:
    """A span as people say it: 45 s, 12 min, 3 h 05 min."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
