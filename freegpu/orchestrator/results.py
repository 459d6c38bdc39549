"""Bringing things home from the store: a job's output while it runs, its results and checkpoints, verified."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from freegpu.agent import transfer, wire
from freegpu.agent.stores.base import ObjectMissing, Store, StoreError
from freegpu.errors import ChecksumError, ConfigError, NotReadyError, SharedStoreError
from freegpu.jobs.lifecycle import AttemptState, EndReason
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.mailbox import read_manifest
from freegpu.orchestrator.model import Attempt, Checkpoint, Job
from freegpu.orchestrator.views import Generation, LogChunk

#: a segment that cannot be read after so many looks is reported as torn, and passed over
LOOKS = 20

_MANIFEST = re.compile(r"(\d+)-(\d+)\.json")


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
    with _explained(into, "the results are incomplete", "`freegpu retry` makes the result anew"):
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
    return paths, manifest.size


def generations(ledger: Ledger, store: Store, job: str) -> tuple[Generation, ...]:
    """Every checkpoint that the ledger or the store knows of, newest first. SharedStoreError.

    Agents delete confirmed ones beyond `checkpoint.keep` before `gc` lets the ledger forget them: what has no
    manifest in the store any more is deleted.
    """
    attempts = {attempt.epoch: attempt for attempt in ledger.attempts(job=job)}
    bases = {
        (a.base_epoch, a.base_generation)
        for a in attempts.values()
        if a.state is not AttemptState.ENDED
    }
    found = []
    try:
        there = set(store.list(wire.checkpoint_prefix(job)))
        for row in ledger.checkpoints(job):
            # a listing may lack what is there
            known = row.key in there or store.stat(row.key) is not None
            there.discard(row.key)
            state = "base" if (row.epoch, row.generation) in bases else "confirmed"
            found.append(
                _generation(
                    attempts.get(row.epoch),
                    epoch=row.epoch,
                    generation=row.generation,
                    step=row.step,
                    size=row.size,
                    sent=row.sent,
                    at=row.confirmed_at,
                    state=state if known else "deleted",
                    confirmed_by=row.confirmed_by,
                )
            )
        for key in there:
            numbers = _MANIFEST.fullmatch(key.rpartition("/")[2])
            if numbers:
                found.append(_unconfirmed(store, key, attempts, *map(int, numbers.groups())))
    except StoreError as error:
        raise SharedStoreError(str(error), hint="run `freegpu doctor`") from error
    return tuple(sorted(found, key=lambda g: (g.epoch, g.generation), reverse=True))


def _generation(attempt: Attempt | None, **fields: Any) -> Generation:
    return Generation(
        name=f"{fields['epoch']}-{fields['generation']}",
        attempt=attempt.id if attempt else "",
        number=attempt.number if attempt else 0,
        platform=attempt.platform if attempt else "",
        **fields,
    )


def _unconfirmed(
    store: Store, key: str, attempts: Mapping[int, Attempt], epoch: int, generation: int
) -> Generation:
    """What its own manifest says; nobody has verified it, so it may also be torn."""
    manifest = at = None
    with contextlib.suppress(wire.Unreadable, ObjectMissing, TypeError, ValueError, OverflowError):
        data = store.get(key)
        manifest = wire.Manifest.from_bytes(data, wire.sha256(data))
        at = datetime.fromtimestamp(manifest.created, UTC)
    return _generation(
        attempts.get(epoch),
        epoch=epoch,
        generation=generation,
        step=manifest.step if manifest else None,
        size=manifest.size if manifest else None,
        sent=None,
        at=at,
        state="unconfirmed",
        confirmed_by="",
    )


def choose_checkpoint(job: Job, checkpoints: Sequence[Checkpoint], which: str) -> Checkpoint:
    """The confirmed checkpoint that is meant: "latest", a generation, or epoch and generation ("2-14").

    A generation alone is the newest attempt's that has one of this number. NotReadyError: there is none.
    """
    if which == "latest":
        if job.checkpoint is None:
            raise NotReadyError(
                f"{job.name} ({job.id}) has no confirmed checkpoint yet",
                hint=f"`freegpu checkpoints {job.id}` lists what there is",
            )
        return job.checkpoint
    numbers = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9})", which)
    for row in checkpoints if numbers else ():
        epoch, generation = numbers.groups() if numbers else ("", "")
        if row.generation == int(generation) and (not epoch or row.epoch == int(epoch)):
            return row
    raise NotReadyError(
        f"{job.name} ({job.id}) has no confirmed checkpoint {which!r}",
        hint=f"`freegpu checkpoints {job.id}` lists them; `latest` is the newest",
    )


def bring_checkpoint(
    store: Store, chosen: Checkpoint, into: Path, *, force: bool
) -> tuple[tuple[str, ...], int]:
    """Make a folder hold a checkpoint's files, replaced when all of it is verified and untouched until then.

    Returns (paths, bytes). ConfigError: the folder holds something and `force` is not set, or cannot be written;
    ChecksumError: the store does not hold (any more) what the manifest says.
    """
    if into.is_dir() and any(into.iterdir()) and not force:
        raise ConfigError(
            f"{into} is there already and not empty",
            hint="name another folder, or use --force to replace all that is in it",
        )
    if into.resolve() in (Path.cwd(), Path.home(), *Path.cwd().parents):
        raise ConfigError(
            f"{into} would be replaced as a whole, and you are in it", hint="name a folder below"
        )
    name = f"checkpoint {chosen.epoch}-{chosen.generation}"
    with _explained(into, f"{name} is incomplete", "`freegpu checkpoints` shows what there is"):
        manifest = read_manifest(store, chosen.key, chosen.sha256)
        if manifest is None:
            raise ChecksumError(
                f"{name} is not in the store any more, or damaged",
                hint="agents keep the newest `checkpoint.keep` confirmed ones",
            )
        into.parent.mkdir(parents=True, exist_ok=True)
        transfer.download(store, manifest, into)
    return tuple(file.path for file in manifest.files), manifest.size


@contextlib.contextmanager
def _explained(into: Path, incomplete: str, hint: str) -> Iterator[None]:
    try:
        yield
    except wire.Unreadable as error:
        raise ChecksumError(str(error), hint=hint) from error
    except ObjectMissing as error:
        raise ChecksumError(f"{incomplete}: {error}", hint="run `freegpu doctor`") from error
    except StoreError as error:
        raise SharedStoreError(str(error), hint="run `freegpu doctor`") from error
    except OSError as error:
        raise ConfigError(
            f"{into} cannot be written ({error.strerror or error})", hint="name another folder"
        ) from error


def _refuse_changed(fresh: Path, into: Path, paths: tuple[str, ...]) -> None:
    for path in paths:
        there = into / path
        if not there.exists():
            continue
        if there.is_dir() or there.read_bytes() != (fresh / path).read_bytes():
            raise ConfigError(
                f"{there} is there already and differs", hint="name another folder, or use --force"
            )
