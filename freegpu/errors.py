"""Every failure that freegpu reports, with the exit code a script can rely on.

::

    FreeGPUError                 1
    ├── ConfigError             10
    │   ├── JobSpecError        11   path, line, field
    │   ├── UnknownAdapterError 12
    │   └── WorkdirError        13   what cannot be packed, or is too large
    ├── LedgerError             20
    │   ├── LedgerBusyError     21   another orchestrator holds the ledger
    │   ├── SchemaVersionError  22   written by a newer freegpu
    │   ├── JobNotFoundError    23   no such job, or an ambiguous prefix
    │   └── LedgerCorruptError  24
    ├── InvalidTransitionError  30
    ├── StaleEpochError         31
    ├── JobFailedError          32   `submit --wait` and `logs -f`: the job did not succeed
    ├── NotReadyError           33   asked for something that is not there yet
    ├── AdapterError            40   adapter, account
    │   ├── MissingSDKError     41
    │   ├── AuthError           42
    │   ├── NoCapacityError     43   transient
    │   ├── QuotaExhaustedError 44
    │   ├── RateLimitedError    45   transient
    │   ├── UnreachableError    46   transient
    │   ├── RejectedError       47
    │   └── AttendedError       48   a person must act
    └── SharedStoreError        50
        ├── ObjectMissingError  51
        ├── ChecksumError       52
        └── ForeignStoreError   53   the store belongs to another home

A message is one sentence, lower case, without a full stop: what was found, and where. The hint says
what to do next. Exit code 2 is a usage error of the command line, 130 is Ctrl-C.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

__all__ = [
    "AdapterError",
    "AttendedError",
    "AuthError",
    "ChecksumError",
    "ConfigError",
    "ForeignStoreError",
    "FreeGPUError",
    "InvalidTransitionError",
    "JobFailedError",
    "JobNotFoundError",
    "JobSpecError",
    "LedgerBusyError",
    "LedgerCorruptError",
    "LedgerError",
    "MissingSDKError",
    "NoCapacityError",
    "NotReadyError",
    "ObjectMissingError",
    "QuotaExhaustedError",
    "RateLimitedError",
    "RejectedError",
    "SchemaVersionError",
    "SharedStoreError",
    "StaleEpochError",
    "UnknownAdapterError",
    "UnreachableError",
    "WorkdirError",
]


class FreeGPUError(Exception):
    """Something freegpu can name; never shown to a user as a traceback."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(FreeGPUError):
    """A setting or file of the user's is not usable."""

    code = "config"
    exit_code = 10


class JobSpecError(ConfigError):
    """A job spec does not say something freegpu can run."""

    code = "job_spec"
    exit_code = 11

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        path: str = "",
        line: int | None = None,
        field: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.line = line
        self.field = field

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.path, self.line) if part)
        return f"{where}: {self.message}" if where else self.message


class UnknownAdapterError(ConfigError):
    """No adapter bears this name."""

    code = "unknown_adapter"
    exit_code = 12


class WorkdirError(ConfigError):
    """The working folder cannot be packed: too large, or not readable."""

    code = "workdir"
    exit_code = 13


class LedgerError(FreeGPUError):
    """The ledger refuses, or cannot be reached."""

    code = "ledger"
    exit_code = 20


class LedgerBusyError(LedgerError):
    """Another orchestrator is at work on this ledger."""

    code = "ledger_busy"
    exit_code = 21


class SchemaVersionError(LedgerError):
    """The ledger was written by a newer freegpu."""

    code = "schema_version"
    exit_code = 22


class JobNotFoundError(LedgerError):
    """No job has this id, or several begin with it."""

    code = "job_not_found"
    exit_code = 23


class LedgerCorruptError(LedgerError):
    """The ledger file is damaged, or is no ledger."""

    code = "ledger_corrupt"
    exit_code = 24


class InvalidTransitionError(FreeGPUError):
    """This state does not allow that event."""

    code = "invalid_transition"
    exit_code = 30


class StaleEpochError(FreeGPUError):
    """A guarded commit found that somebody newer had been there."""

    code = "stale_epoch"
    exit_code = 31


class JobFailedError(FreeGPUError):
    """The job that was waited for did not succeed."""

    code = "job_failed"
    exit_code = 32


class NotReadyError(FreeGPUError):
    """What was asked for does not exist yet."""

    code = "not_ready"
    exit_code = 33


class AdapterError(FreeGPUError):
    """A platform said no, or did not answer. Adapters raise nothing else."""

    code = "adapter"
    exit_code = 40
    #: whether the same call may succeed later without anybody changing anything
    transient: ClassVar[bool] = False

    def __init__(
        self, message: str, *, hint: str = "", adapter: str = "", account: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.adapter = adapter
        self.account = account


class MissingSDKError(AdapterError):
    """The platform's own library is not installed."""

    code = "missing_sdk"
    exit_code = 41


class AuthError(AdapterError):
    """Credentials are missing, wrong or expired."""

    code = "auth"
    exit_code = 42


class NoCapacityError(AdapterError):
    """The platform has no such card free now."""

    code = "no_capacity"
    exit_code = 43
    transient = True


class QuotaExhaustedError(AdapterError):
    """The account's quota does not allow another session."""

    code = "quota_exhausted"
    exit_code = 44

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        adapter: str = "",
        account: str = "",
        resets_at: datetime | None = None,
    ) -> None:
        super().__init__(message, hint=hint, adapter=adapter, account=account)
        self.resets_at = resets_at


class RateLimitedError(AdapterError):
    """Too many requests; `retry_after_s` is in seconds where the platform told it."""

    code = "rate_limited"
    exit_code = 45
    transient = True

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        adapter: str = "",
        account: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint, adapter=adapter, account=account)
        self.retry_after_s = retry_after_s


class UnreachableError(AdapterError):
    """Timeout, refused connection or a server error: it may or may not have happened."""

    code = "unreachable"
    exit_code = 46
    transient = True


class RejectedError(AdapterError):
    """The platform refused for good."""

    code = "rejected"
    exit_code = 47


class AttendedError(AdapterError):
    """A person must act first; `url` is where."""

    code = "attended"
    exit_code = 48

    def __init__(
        self, message: str, *, hint: str = "", adapter: str = "", account: str = "", url: str = ""
    ) -> None:
        super().__init__(message, hint=hint, adapter=adapter, account=account)
        self.url = url


class SharedStoreError(FreeGPUError):
    """The shared storage cannot be used."""

    code = "store"
    exit_code = 50


class ObjectMissingError(SharedStoreError):
    """Something that should lie in the store does not."""

    code = "object_missing"
    exit_code = 51


class ChecksumError(SharedStoreError):
    """What lies in the store is not what was written."""

    code = "checksum"
    exit_code = 52


class ForeignStoreError(SharedStoreError):
    """The store belongs to another freegpu home."""

    code = "foreign_store"
    exit_code = 53
