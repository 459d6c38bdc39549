"""What may be spent at Lightning: the platform's balances, our own meter, and the ceiling for paid use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from freegpu.adapters.lightning import words
from freegpu.adapters.lightning.calls import Calls
from freegpu.adapters.lightning.meter import Notes
from freegpu.clock import Clock
from freegpu.errors import (
    AdapterError,
    AuthError,
    QuotaExhaustedError,
    RateLimitedError,
    UnreachableError,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Purse:
    """Credits, all of them."""

    #: a new session may use so much
    free: float
    #: of `limit`, `used` is gone: by our own meter since the figure last moved; with paid use, this month
    limit: float
    used: float
    #: which balance it is, and since when it has stood at its figure (seconds since 1970)
    source: str
    since: float
    #: what each source said
    said: Mapping[str, float]


class Money:
    """See the module. `ceiling`: credits a calendar month (UTC) that may be used beyond what it began with."""

    def __init__(self, calls: Calls, clock: Clock, *, ceiling: float) -> None:
        self.ceiling = ceiling
        self._calls = calls
        self._clock = clock

    def look(self, notes: Notes) -> Purse:
        """Ask each source, and note what was seen. UnreachableError: no source answered.

        Of the sources the one counts that leaves the most once our own use since it last moved is taken off: those
        that were reported wrong stood still, or were too low.
        """
        said, spent = self._ask()
        now = self._clock.time()
        notes.see(said, now)
        left = {
            source: credits - notes.used_since(notes.figures[source].since, now)
            for source, credits in said.items()
        }
        source = max(left, key=lambda name: left[name])
        since = notes.figures[source].since
        if not self.ceiling:
            limit = max(0.0, said[source])
            used = notes.used_since(since, now)
            free = max(0.0, limit - used)
        else:
            month = notes.open_month(left[source], spent, now)
            limit = max(0.0, month.credits + self.ceiling)
            used = max(0.0, notes.gone(month, spent, now))
            # what still runs may use all that it was given, whether the platform shows it yet or not
            free = limit - used - notes.may_use(now)
        return Purse(free=free, limit=limit, used=used, source=source, since=since, said=said)

    def poor(self, purse: Purse, card: str, needed: float) -> AdapterError:
        """Why a session is not started that would take so many credits to its first checkpoint."""
        takes = f"a first checkpoint on {card} takes {needed:.2f}"
        if self.ceiling:
            return self._calls.error(
                QuotaExhaustedError,
                f"{max(0.0, purse.free):.2f} credits are left of what this month may use, {purse.limit:.2f} with the"
                f" ceiling for paid use, and {takes}",
                hint="`freegpu connect lightning --paid-ceiling CREDITS --accept paid-use` sets another ceiling",
            )
        return self._calls.error(
            QuotaExhaustedError,
            f"{purse.free:.2f} credits are left ({purse.source} balance), and {takes}",
            hint="`freegpu connect lightning --paid-ceiling CREDITS --accept paid-use` allows more than is free",
        )

    def _ask(self) -> tuple[dict[str, float], float | None]:
        """Balances by source, and all that the account ever spent, where the platform tells it."""
        project = self._calls.project()
        said: dict[str, float] = {}
        spent: float | None = None
        failed: AdapterError | None = None
        for source, path in (
            ("project", f"/v1/projects/{project}/billing/balance"),
            ("user", "/v1/users/billing/balance"),
            ("account", "/v1/billing/account-balance"),
            ("membership", "/v1/memberships"),
        ):
            try:
                told = self._calls.ask("GET", path)
                if source == "membership":
                    rows = self._calls.rows(told, "memberships")
                    told = next((row for row in rows if row.get("projectId") == project), {})
            except (AuthError, RateLimitedError):
                raise
            except AdapterError as error:
                failed = error
                continue
            if source == "user":
                spent = words.number(told.get("totalSpent"))
            amount = words.number(told.get("balance"))
            if amount is not None:
                said[source] = amount
        if not said:
            raise failed or self._calls.error(UnreachableError, "the platform names no balance")
        return said, spent
