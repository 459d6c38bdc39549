"""Progress as the ledger holds it, as observations to learn from. Reads only.

A rate is noted when an attempt ends (`events`). While one still runs, its last word counts as one more
observation, so that 499 cells of a matrix need not wait for the first to end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Attempt
from freegpu.orchestrator.speeds import LEAST_S, Book, Kin, Rate, kin, learn

__all__ = ["book", "rates", "running"]


def book(
    ledger: Ledger, families: dict[str, Kin] | None = None
) -> tuple[Book | None, Mapping[str, Kin]]:
    """What the jobs of this home showed, and the kin of each that it may tell something about; (None, {}): nothing was seen yet.

    `families`: what was found before; a spec does not change, so ten thousand of them are read once.
    """
    seen = rates(ledger)
    if not seen:
        return None, {}
    families = {} if families is None else families
    kindred = ledger.kindred()
    shown = {rate.job for rate in seen}
    _read(ledger, [id for id, *_ in kindred if id in shown and id not in families], families)
    # whoever has neither the bundle nor the beginning of the name of one of these is no kin of theirs
    known = [families[id] for id in shown if id in families]
    bundles, stems = {of.family[1] for of in known}, {of.namesakes[0] for of in known}
    lengths = {len(stem) for stem in stems}
    near = [
        id
        for id, name, bundle, _ in kindred
        if id not in families
        and (bundle in bundles or any(name[:length] in stems for length in lengths))
    ]
    _read(ledger, near, families)
    totals = {id: total for id, _, _, total in kindred if total is not None}
    return learn(seen, families, totals), families


def _read(ledger: Ledger, ids: Collection[str], families: dict[str, Kin]) -> None:
    families.update((id, kin(spec, bundle)) for id, bundle, spec in ledger.raw_specs(ids))


def rates(ledger: Ledger) -> list[Rate]:
    """All observations: those that were noted, and the last words of attempts that run."""
    found = [
        Rate(
            job=speed.job,
            card=speed.card,
            steps_per_s=speed.steps_per_s,
            at=speed.at,
            span_s=speed.span_s,
        )
        for speed in ledger.speeds()
    ]
    found += [
        rate
        for attempt in ledger.attempts(open_only=True)
        if (rate := running(attempt)) is not None
    ]
    return found


def running(attempt: Attempt) -> Rate | None:
    """How fast an attempt goes that has not ended, by its last word; None: it cannot be told yet.

    One that has run for less than LEAST_S says nothing: imports, downloads and compilation come first, and what a first
    step after them would foretell is hours too long.
    """
    progress = attempt.progress
    if attempt.started_at is None or progress.at is None or progress.step is None:
        return None
    ran = (progress.at - attempt.started_at).total_seconds()
    if ran < LEAST_S:
        return None
    told = progress.values.get("rate")
    rate = float(told) if isinstance(told, int | float) and not isinstance(told, bool) else 0.0
    if rate <= 0 and not attempt.base_epoch:
        rate = progress.step / ran
    if rate <= 0:
        return None
    return Rate(job=attempt.job, card=attempt.card, steps_per_s=rate, at=progress.at, span_s=ran)
