"""What Kaggle's answers mean, in our words. Pure: JSON as it came goes in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from freegpu.adapters.base import Finding, Observation, PlatformState, QuotaReport
from freegpu.errors import AdapterError, NoCapacityError, QuotaExhaustedError, RejectedError
from freegpu.jobs.lifecycle import EndReason

__all__ = [
    "GPU",
    "TPU",
    "lacking",
    "moment",
    "observation",
    "pool",
    "quota",
    "quota_finding",
    "refusal",
]

GPU, TPU = "gpu", "tpu"
#: words of KernelWorkerStatus (kagglesdk 0.1.38); the default is left out of answers
_STATES = {
    **dict.fromkeys(("QUEUED", "NEW_SCRIPT"), PlatformState.STARTING),
    "RUNNING": PlatformState.RUNNING,
    **dict.fromkeys(
        ("COMPLETE", "ERROR", "CANCEL_REQUESTED", "CANCEL_ACKNOWLEDGED"), PlatformState.ENDED
    ),
}
_SOURCES = ("Dataset", "Competition", "Kernel", "Model")
_BUSY = re.compile(r"session count|too many .{0,20}session|concurren", re.I)
_BROKE = re.compile(r"quota|hours? .{0,20}(left|remaining|used)", re.I)
_FULL = re.compile(r"capacity|no .{0,20}(available|accelerator)|unavailable", re.I)
_TIMED = re.compile(r"time.?out|timed out|time limit|maximum .{0,20}(time|runtime|duration)", re.I)


def refusal(error: str) -> type[AdapterError]:
    """What a SaveKernel that was answered with this error means. The cap's words first: they count, as a quota might."""
    if _BUSY.search(error):
        return NoCapacityError
    if _BROKE.search(error):
        return QuotaExhaustedError
    return NoCapacityError if _FULL.search(error) else RejectedError


def lacking(told: Mapping[str, Any]) -> list[str]:
    """The sources that a SaveKernel did not attach: the kernel runs all the same, without them."""
    return [
        f"{kind.lower()} {source}"
        for kind in _SOURCES
        for source in told.get(f"invalid{kind}Sources") or ()
    ]


def pool(row: Mapping[str, Any]) -> str:
    """Which quota a notebook of a list draws on: by its shape, which is told of the last session, else by its switches."""
    shape = str(row.get("machineShape") or "").casefold()
    if "tpu" in shape or (not shape and row.get("enableTpu")):
        return TPU
    return GPU if "nvidia" in shape or (not shape and row.get("enableGpu")) else ""


def quota(told: Mapping[str, Any], as_of: datetime) -> list[QuotaReport]:
    """A report a pool that is told of. Reserved counts as used: whether `timeUsed` holds it is not known."""
    resets, reports = moment(told.get("quotaRefreshTime")), []
    for pool in (GPU, TPU):
        row = told.get(f"{pool}Quota")
        if not isinstance(row, dict):
            continue
        limit = _seconds(row.get("totalTimeAllowed"))
        used = (_seconds(row.get("timeUsed")) or 0.0) + (_seconds(row.get("timeReserved")) or 0.0)
        reports.append(
            QuotaReport(
                pool=pool,
                used_s=used,
                limit_s=limit if limit is not None else _seconds(row.get("minimumTimeAllowed")),
                resets_at=resets,
                as_of=as_of,
            )
        )
    return reports


def observation(told: Mapping[str, Any]) -> Observation:
    raw = told.get("status", "QUEUED")
    word = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(raw)).upper()
    word = word.removeprefix("KERNEL_WORKER_STATUS_")
    state = _STATES.get(word, PlatformState.UNKNOWN)
    detail = " ".join(str(told.get("failureMessage") or "").split())[:500]
    reason = ""
    if state is PlatformState.ENDED and _BROKE.search(detail):
        reason = EndReason.QUOTA_EXHAUSTED
    elif state is PlatformState.ENDED and _TIMED.search(detail):
        reason = EndReason.SESSION_EXPIRED
    return Observation(state=state, raw=str(raw), detail=detail, reason=reason)


def quota_finding(reports: Sequence[QuotaReport]) -> Finding:
    if not reports:
        return Finding(name="quota", ok=None, detail="Kaggle names no quota")
    told = ", ".join(
        f"{report.pool} {max(0.0, report.limit_s - report.used_s) / 3600:.1f} of {report.limit_s / 3600:.0f} h left"
        for report in reports
        if report.limit_s is not None
    )
    resets = reports[0].resets_at
    when = f", back at {resets:%Y-%m-%d %H:%M} UTC" if resets else ""
    return Finding(name="quota", ok=True, detail=f"{told or 'no limit is named'}{when}")


def _seconds(told: Any) -> float | None:
    """A duration such as "108000s" or "1.5s"; None for null and whatever else is none."""
    try:
        number = float(str(told).removesuffix("s"))
    except ValueError:
        return None
    return number if 0 <= number < 1e12 else None


def moment(told: Any) -> datetime | None:
    """RFC 3339 as aware UTC, also with nanoseconds or without a zone, which means UTC there."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)?", str(told))
    if match is None:
        return None
    try:
        found = datetime.fromisoformat(match[1] + (match[2] or "Z"))
    except ValueError:
        return None
    return found.astimezone(UTC)
