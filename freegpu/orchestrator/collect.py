"""Garbage in the store and the home: what may go, and why.

Deleted is only what belongs to attempts that are over and that no kept checkpoint, result or open job refers
to; never "unreferenced in my view". `plan` is pure over what the ledger and a listing say.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from freegpu.agent import wire
from freegpu.agent.stores.base import Store
from freegpu.jobs.lifecycle import AttemptState, JobState
from freegpu.orchestrator import cells
from freegpu.orchestrator.home import forget_secrets, secret_refs
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.mailbox import read_manifest
from freegpu.orchestrator.model import Attempt, Job

_ATTEMPT = re.compile(r"attempts/([^/]+)/(blobs|log)/")
_SESSION = re.compile(r"sessions/([^/]+)/")
_MANIFEST = re.compile(r"jobs/([^/]+)/checkpoints/")


@dataclass(slots=True)
class Keep:
    """Keys that something still needs."""

    keys: set[str] = field(default_factory=set)
    #: jobs of which a manifest could not be read: nobody knows which blobs it needs, and an older
    #: checkpoint may be all there is to fall back on, so everything of theirs is left alone
    doubtful: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Collector:
    """One collection. `keep_days`: finished jobs' checkpoints, logs and mailboxes stay that long."""

    ledger: Ledger
    store: Store
    home: Path
    now: datetime
    keep_days: float
    #: agents that are sent out, or that a cell fetches
    agents: frozenset[str]
    dropped: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def plan(self) -> list[tuple[str, str]]:
        """(key, why) of every object that may go, manifests before their blobs."""
        jobs = {job.id: job for job in self.ledger.jobs()}
        attempts = {attempt.id: attempt for attempt in self.ledger.attempts()}
        sessions = {session.id: session for session in self.ledger.sessions(open_only=False)}
        keep = self._kept(jobs, attempts)
        old = self.now - timedelta(days=self.keep_days)
        gone_sessions = {
            s.id for s in sessions.values() if s.ended_at is not None and s.ended_at < old
        }
        bundles = {
            wire.input_key(job.bundle)
            for job in jobs.values()
            if job.bundle and not self._done_with(job, old)
        }
        found: list[tuple[str, str]] = []
        for key in self.store.list("jobs"):
            job_match = _MANIFEST.match(key)
            if (
                job_match
                and key not in keep.keys
                and job_match[1] not in keep.doubtful
                and self._manifest_may_go(key, job_match[1], jobs, attempts)
            ):
                self.dropped[job_match[1]].add(key)
                found.append((key, "an older checkpoint"))
        for key in self.store.list("attempts"):
            why = self._attempt_file(key, jobs, attempts, keep, old)
            if why:
                found.append((key, why))
        for key in self.store.list("sessions"):
            session_match = _SESSION.match(key)
            if session_match and session_match[1] in gone_sessions:
                found.append((key, "the mailbox of a session that ended long ago"))
        open_sessions = {session.id for session in sessions.values() if session.state.open}
        known = {cell.id for cell in cells.known(self.ledger).values()}
        for key in self.store.list("cells"):
            cell, _, session = key.removeprefix("cells/").partition("/")
            session = session.removesuffix(".json")
            # of a cell that counts, a session that nobody has taken in yet may have just begun
            if session not in open_sessions and (session in sessions or cell not in known):
                found.append((key, "the announcement of a session that has ended"))
        found += [
            (key, "code of jobs that are done")
            for key in self.store.list("blobs")
            if key not in bundles
        ]
        if not open_sessions:
            current = {wire.agent_key(digest) for digest in self.agents}
            found += [
                (key, "an older agent") for key in self.store.list("agent") if key not in current
            ]
        return found

    def _done_with(self, job: Job, old: datetime) -> bool:
        return job.state is JobState.SUCCEEDED and job.ended_at is not None and job.ended_at < old

    def _kept(self, jobs: dict[str, Job], attempts: dict[str, Attempt]) -> Keep:
        """What checkpoints and outputs to keep, with all their blobs."""
        keep = Keep()
        old = self.now - timedelta(days=self.keep_days)
        open_attempts = defaultdict(list)
        for attempt in attempts.values():
            if attempt.state is not AttemptState.ENDED:
                open_attempts[attempt.job].append(attempt)
        for job in jobs.values():
            if not self._done_with(job, old):
                rows = self.ledger.checkpoints(job.id)[: max(1, job.spec.checkpoint.keep)]
                current = [job.checkpoint] if job.checkpoint else []
                for checkpoint in [*current, *rows]:
                    self._keep_manifest(keep, checkpoint.key, checkpoint.sha256, job.id)
            for attempt in open_attempts[job.id]:
                # it may still be restoring it, and what it writes may refer to its blobs
                for checkpoint in self.ledger.checkpoints(job.id):
                    if (checkpoint.epoch, checkpoint.generation) == _base(attempt):
                        self._keep_manifest(keep, checkpoint.key, checkpoint.sha256, job.id)
            if job.result_key:
                self._keep_manifest(keep, job.result_key, job.result_sha256, job.id)
        for attempt in attempts.values():
            if attempt.outputs_key and not jobs[attempt.job].result_attempt:
                self._keep_manifest(keep, attempt.outputs_key, attempt.outputs_sha256, attempt.job)
        return keep

    def _keep_manifest(self, keep: Keep, key: str, digest: str, job: str) -> None:
        if key in keep.keys:
            return
        keep.keys.add(key)
        manifest = read_manifest(self.store, key, digest)
        if manifest is None:
            keep.doubtful.add(job)
            return
        keep.keys.update(part.key for part in manifest.blobs())

    def _manifest_may_go(
        self, key: str, job: str, jobs: dict[str, Job], attempts: dict[str, Attempt]
    ) -> bool:
        """A live attempt deletes its own; ours to delete are those of attempts that are over."""
        epoch = key.rsplit("/", 1)[1].split("-")[0]
        return job in jobs and not any(
            a.job == job and a.state is not AttemptState.ENDED and epoch == f"{a.epoch:06d}"
            for a in attempts.values()
        )

    def _attempt_file(
        self,
        key: str,
        jobs: dict[str, Job],
        attempts: dict[str, Attempt],
        keep: Keep,
        old: datetime,
    ) -> str:
        match = _ATTEMPT.match(key)
        attempt = attempts.get(match[1]) if match else None
        if match is None or attempt is None or attempt.state is not AttemptState.ENDED:
            return ""
        job = jobs[attempt.job]
        if match[2] == "log":
            ended = job.ended_at
            return "the log of a job that ended long ago" if ended and ended < old else ""
        if key in keep.keys or attempt.job in keep.doubtful:
            return ""
        return "a part of no kept checkpoint or result"

    def local_leftovers(self) -> Iterable[tuple[Path, str]]:
        """Folders of ended sessions on this machine."""
        for session in self.ledger.sessions(open_only=False):
            folder = self.home / "sessions" / session.id
            if not session.state.open and folder.is_dir():
                yield folder, "the working files of a session that has ended"

    def finish(self) -> None:
        """After deleting: the ledger forgets dropped checkpoints, the home forgets unused secrets."""
        for job, keys in self.dropped.items():
            self.ledger.drop_checkpoints(job, keys)
        wanted = {
            job.spec.secrets_ref
            for job in self.ledger.jobs()
            if job.state is not JobState.SUCCEEDED
        }
        for ref in secret_refs(self.home):
            if ref not in wanted:
                forget_secrets(self.home, ref)


def _base(attempt: Attempt) -> tuple[int, int]:
    return attempt.base_epoch, attempt.base_generation


def remove_tree(path: Path) -> None:
    """Delete a folder of ours; files that vanish meanwhile are fine."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def tree_size(path: Path) -> int:
    """Bytes of the files below a folder."""
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):
            if not file.is_symlink() and file.is_file():
                total += file.stat().st_size
    return total
