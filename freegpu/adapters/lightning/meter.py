"""Our own meter of Lightning's credits, in a file of the home: what was used that the platform does not show yet.

The platform's balances lag, by hours as was reported, and one was seen to stand still at 5.0 while credits were used
(2026-09-06). So of each balance it is noted since when it has stood at its figure, and what our sessions have used since
then is taken off. For paid use the month is noted as it began: the ceiling holds for the month, not for each start.
Knows no platform: it is told figures and counts. Credits, and seconds since 1970.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from freegpu.adapters.hosts import held, write_private
from freegpu.clock import Clock, from_timestamp
from freegpu.errors import RejectedError

#: a session is forgotten when it began so long ago: two months count at most
_FORGET_S = 70 * 86400.0


@dataclass(kw_only=True, slots=True)
class Run:
    """A session's machine, from before it was asked for: it may run, and cost, although no answer came."""

    price: float
    #: the longest that it can go on
    lasts_s: float
    begun: float
    ended: float | None = None
    #: what the platform said of it last; rises for some minutes after the end
    cost: float = 0.0
    ref: str = ""

    def used(self, since: float, now: float) -> float:
        """From `since` on, by price and time; the platform's figure if that is more and all of it is meant."""
        end = min(now if self.ended is None else self.ended, self.begun + self.lasts_s)
        metered = max(0.0, end - max(self.begun, since)) * self.price / 3600
        return max(metered, self.cost) if self.begun >= since else metered

    def may_use(self, now: float) -> float:
        """What it can still use from now on."""
        if self.ended is not None:
            return 0.0
        return max(0.0, self.begun + self.lasts_s - now) * self.price / 3600


@dataclass(kw_only=True, slots=True)
class Figure:
    """A balance as one source says it, and since when it has stood there."""

    credits: float
    since: float


@dataclass(kw_only=True, slots=True)
class Month:
    """A calendar month (UTC) as it was when it was first looked at."""

    name: str
    at: float
    credits: float
    #: all that the account had ever spent by then, by the platform's word; None: it did not say
    spent: float | None = None


@dataclass(kw_only=True, slots=True)
class Notes:
    """All that is noted; see the module."""

    figures: dict[str, Figure] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    month: Month | None = None

    def see(self, said: Mapping[str, float], now: float) -> None:
        """Each source's figure; one that stands where it stood keeps its age."""
        for source, credits in said.items():
            known = self.figures.get(source)
            if known is None or abs(known.credits - credits) > 1e-9 or known.since > now:
                self.figures[source] = Figure(credits=credits, since=now)

    def used_since(self, since: float, now: float) -> float:
        """By all our sessions."""
        return sum(run.used(since, now) for run in self.runs.values())

    def may_use(self, now: float) -> float:
        """What sessions that may still run can use from now on."""
        return sum(run.may_use(now) for run in self.runs.values())

    def open_month(self, credits: float, spent: float | None, now: float) -> Month:
        """This month as it began for us, noted if that is now."""
        name = f"{from_timestamp(now):%Y-%m}"
        if self.month is None or self.month.name != name:
            self.month = Month(name=name, at=now, credits=credits, spent=spent)
        return self.month

    def gone(self, month: Month, spent: float | None, now: float) -> float:
        """What was used this month: by the platform's count of the whole account, or by our own, whichever is more."""
        ours = self.used_since(month.at, now)
        if spent is None or month.spent is None:
            return ours
        return max(ours, spent - month.spent)

    def settle(self, name: str, ended: float, cost: float | None, now: float) -> bool:
        """A session is over, by its key or its handle. False: it was settled like that before, or is not known.

        An end before its beginning is a wrong clock's: then it ended now.
        """
        run = self.runs.get(name) or next((r for r in self.runs.values() if r.ref == name), None)
        cost = cost or 0.0
        if run is None or (run.ended is not None and cost <= run.cost):
            return False
        run.ended = (ended if ended >= run.begun else now) if run.ended is None else run.ended
        run.cost = max(run.cost, cost)
        return True


class Meter:
    """The notes in their file."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.path = folder / "meter.json"
        self._clock = clock

    def read(self) -> Notes:
        """RejectedError: the file is not what was written. Nothing is started then: what was used is not known."""
        try:
            told = json.loads(self.path.read_bytes())
            return Notes(
                figures={name: Figure(**row) for name, row in told["figures"].items()},
                runs={key: Run(**row) for key, row in told["runs"].items()},
                month=Month(**told["month"]) if told["month"] else None,
            )
        except FileNotFoundError:
            return Notes()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RejectedError(
                f"the meter in {self.path} cannot be read ({type(error).__name__})",
                hint="if you remove it, what was used so far counts no more: look at your balance first",
            ) from error

    @contextlib.contextmanager
    def open(self) -> Iterator[Notes]:
        """The notes, to be changed; kept when the block ends well. One process at a time."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with held(self.path.with_suffix(".lock")):
            notes = self.read()
            yield notes
            old = self._clock.time() - _FORGET_S
            notes.runs = {key: run for key, run in notes.runs.items() if run.begun > old}
            write_private(self.path, json.dumps(asdict(notes), sort_keys=True).encode())
