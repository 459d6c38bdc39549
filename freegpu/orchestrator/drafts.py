"""Jobs that are not submitted yet, as a forecast sees them: what they wait for, what their kin has shown. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from freegpu.errors import JobNotFoundError
from freegpu.jobs import matrix
from freegpu.jobs.after import refuse_circles
from freegpu.jobs.lifecycle import JobState
from freegpu.jobs.model import JobSpec
from freegpu.orchestrator import history
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Waiting
from freegpu.orchestrator.speeds import kin

__all__ = ["afters", "matrices", "waiting"]


def matrices(jobs: Iterable[tuple[str, JobSpec]]) -> dict[str, list[str]]:
    """Name of a matrix -> ids of its jobs among these; a matrix with one of them is a job like any other."""
    found: dict[str, list[str]] = {}
    for id, spec in jobs:
        if spec.cell:
            found.setdefault(matrix.stem(spec.name, spec.cell), []).append(id)
    return {name: ids for name, ids in found.items() if len(ids) > 1}


def waiting(
    ledger: Ledger, specs: Sequence[JobSpec], drafts: Sequence[Waiting]
) -> tuple[Waiting, ...]:
    """The drafts (one a spec, in this order) with what they come after, and with the speed and length of their kin.

    Errors as of `afters`.
    """
    known = afters(ledger, specs, [draft.id for draft in drafts])
    book, _ = history.book(ledger)
    bundles: dict[str, str] = {}
    found = []
    for spec, draft in zip(specs, drafts, strict=True):
        job = replace(draft, after=known[draft.id])
        if book is not None:
            stem = matrix.stem(spec.name, spec.cell)
            if stem not in bundles:
                bundles[stem] = _bundle(ledger, stem)
            job = book.told(job, kin(spec.to_json(), bundles[stem]))
        found.append(job)
    return tuple(found)


def afters(
    ledger: Ledger, specs: Sequence[JobSpec], ids: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """For each of these ids (one a spec, in this order) the ids that must succeed before it begins.

    JobNotFoundError: one comes after a job that neither the ledger nor another draft is; JobSpecError: they wait for
    each other.
    """
    named: dict[str, list[str]] = {}
    for spec, draft in zip(specs, ids, strict=True):
        for name in {spec.name, matrix.stem(spec.name, spec.cell)}:
            named.setdefault(name, []).append(draft)
    known: dict[str, list[str]] = {}

    def first(text: str, name: str) -> list[str]:
        if text not in known:
            known[text] = named.get(text) or _open(ledger, text, name)
        return known[text]

    found = {
        draft: tuple(dict.fromkeys(id for text in spec.after for id in first(text, spec.name)))
        for spec, draft in zip(specs, ids, strict=True)
    }
    refuse_circles(found, {draft: spec.name for spec, draft in zip(specs, ids, strict=True)})
    return found


def _open(ledger: Ledger, text: str, name: str) -> list[str]:
    """Jobs in the queue that are meant, but for those that have succeeded: nobody waits for them."""
    try:
        meant = ledger.meant(text)
    except JobNotFoundError as error:
        raise JobNotFoundError(
            f"job {name!r} waits for {text!r}: {error.message}", hint=error.hint
        ) from None
    return [job.id for job in meant if job.state is not JobState.SUCCEEDED]


def _bundle(ledger: Ledger, name: str) -> str:
    """The code that the newest job or matrix of this name was submitted with: what is planned is taken to be like it."""
    jobs = [job for job in ledger.jobs_like(name) if matrix.stem(job.name, job.spec.cell) == name]
    return jobs[-1].bundle if jobs else ""
