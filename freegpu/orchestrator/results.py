"""Bringing things home from the store: a job's output while it runs, and its results, verified."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from freegpu.agent import transfer, wire
from freegpu.agent.stores.base import ObjectMissing, Store, StoreError
from freegpu.errors import ChecksumError, ConfigError, NotReadyError, SharedStoreError
from freegpu.jobs.lifecycle import AttemptState, EndReason
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.mailbox import read_manifest
from freegpu.orchestrator.model import Attempt, Job
from freegpu.orchestrator.views import LogChunk

#: a segment that cannot be read after so many looks is reported as torn, and passed over
LOOKS = 20


def log_chunks(
    ledger: Ledger,
    store: Store,
    job_id: str,
    *,
    number: int | None,
    follow: bool,
    pause: Callable[[], None],
) -> Iterator[LogChunk]:
    """A job's output, attempt after attempt; with `follow` until the job is over.

    `pause` is called between looks (it sleeps, and ticks if nobody else does). The output of an attempt
    that was lost stays up to its last segment that reached the store.
    """
    done: set[str] = set()
    position: dict[str, int] = {}
    while True:
        # the job first, then its output: what was written before it ended is then sure to be seen
        job = ledger.job(job_id)
        for attempt in ledger.attempts(job=job_id):
            if attempt.id in done or (number is not None and attempt.number != number):
                continue
            over = attempt.state is AttemptState.ENDED
            yield from _segments(store, attempt, position, last=over or not follow)
            if not over:
                break
            done.add(attempt.id)
        if not follow or (job.state.final and _all_over(ledger, job_id)):
            return
        pause()


def _all_over(ledger: Ledger, job_id: str) -> bool:
    return all(a.state is AttemptState.ENDED for a in ledger.attempts(job=job_id))


def _segments(
    store: Store, attempt: Attempt, position: dict[str, int], *, last: bool
) -> Iterator[LogChunk]:
    while True:
        seq = position.get(attempt.id, 0) + 1
        data = _segment(store, wire.log_key(attempt.id, seq), patient=last)
        if data is None:
            return
        first = seq == 1
        position[attempt.id] = seq
        yield LogChunk(
            attempt=attempt.id, platform=attempt.platform, card=attempt.card, data=data, first=first
        )


def _segment(store: Store, key: str, *, patient: bool) -> bytes | None:
    """The text of a segment; None: not there. A torn one is retried by looking again, then marked."""
    for _ in range(LOOKS if patient else 1):
        try:
            return wire.unpack_log(store.get(key))
        except ObjectMissing:
            return None
        except wire.Unreadable:
            continue
        except StoreError as error:
            raise SharedStoreError(str(error), hint="run `freegpu doctor`") from error
    return b"[freegpu: a piece of the log is damaged]\n" if patient else None


def choose_outputs(job: Job, attempts: list[Attempt]) -> tuple[str, str, str, bool]:
    """(attempt, manifest key, digest, partial): the accepted result, or the newest partial outputs.

    NotReadyError if there is nothing to bring.
    """
    if job.result_attempt:
        if not job.result_key:
            raise NotReadyError(
                f"{job.name} ({job.id}) has succeeded, but wrote no outputs",
                hint="files in $FREEGPU_OUTPUT_DIR and those matching freegpu.outputs are kept",
            )
        return job.result_attempt, job.result_key, job.result_sha256, False
    for attempt in reversed(attempts):
        if attempt.outputs_key and attempt.reason is not EndReason.SUPERSEDED:
            return attempt.id, attempt.outputs_key, attempt.outputs_sha256, True
    raise NotReadyError(
        f"{job.name} ({job.id}) is {job.state} and has no outputs yet",
        hint=f"follow it with `freegpu logs {job.id} -f`",
    )


def bring(
    store: Store, key: str, digest: str, into: Path, *, force: bool
) -> tuple[tuple[str, ...], int]:
    """Download outputs into a folder, every byte verified before the first file appears there.

    Returns (paths, bytes). ConfigError: a file there differs and `force` is not set, or the folder
    cannot be written; ChecksumError: the store does not hold what the manifest says.
    """
    try:
        manifest = read_manifest(store, key, digest)
        if manifest is None:
            raise ChecksumError(
                f"{key} in the store is missing or damaged",
                hint="run `freegpu doctor`; `retry` makes it anew",
            )
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into, prefix=".freegpu-pull-") as staging:
            fresh = Path(staging) / "files"
            transfer.download(store, manifest, fresh)
            paths = tuple(file.path for file in manifest.files)
            if not force:
                _refuse_changed(fresh, into, paths)
            for path in paths:
                target = into / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.is_dir() and not target.is_symlink():
                    shutil.rmtree(target)
                os.replace(fresh / path, target)
    except wire.Unreadable as error:
        raise ChecksumError(str(error), hint="`freegpu retry` makes the result anew") from error
    except ObjectMissing as error:
        raise ChecksumError(
            f"the results are incomplete: {error}", hint="run `freegpu doctor`"
        ) from error
    except StoreError as error:
        raise SharedStoreError(str(error), hint="run `freegpu doctor`") from error
    except OSError as error:
        raise ConfigError(
            f"{into} cannot be written ({error.strerror or error})", hint="name another folder"
        ) from error
    return paths, manifest.size


def _refuse_changed(fresh: Path, into: Path, paths: tuple[str, ...]) -> None:
    for path in paths:
        there = into / path
        if not there.exists():
            continue
        if there.is_dir() or there.read_bytes() != (fresh / path).read_bytes():
            raise ConfigError(
                f"{there} is there already and differs", hint="name another folder, or use --force"
            )
