"""What Lightning's answers mean, and what is asked of it. Pure: no request, no file, no clock.

The shape of answers: lightning-sdk 2026.10.13, looked at on 2026-12-02.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from freegpu import cards
from freegpu.adapters.base import Observation, PlatformState, SessionRef
from freegpu.errors import ConfigError
from freegpu.jobs.lifecycle import EndReason

PREFIX = "freegpu-"
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
REF = re.compile(r"([A-Za-z0-9_-]{1,80})\.([A-Za-z0-9_-]{1,80})")
_MACHINE = re.compile(r"(.+?)(?:x(\d+))?")
#: raw states of a job (lightning_sdk/api/job_api.py, verified 2026-12-02); whatever else comes is UNKNOWN
_STATES = {
    **dict.fromkeys(("pending", "creating"), PlatformState.STARTING),
    # on their way to an end, but still there and still paid for
    **dict.fromkeys(
        ("running", "restarting", "stop", "stopping", "delete", "complete", "fail"),
        PlatformState.RUNNING,
    ),
    **dict.fromkeys(("stopped", "completed", "failed"), PlatformState.ENDED),
    "deleted": PlatformState.GONE,
}
BROKE = re.compile(r"out.of.funds|insufficient.{0,20}(balance|credit|fund)|top up", re.I)
FULL = re.compile(
    r"capacity|no machines? (is )?available|too many|concurren", re.I
)  # also the account's own cap of machines: busy, not a failure
#: the first word is how a session is told from another whose name begins alike: the platform suffixes taken names
_COMMAND = """: freegpu-session {key}
umask 077
cd "$HOME/freegpu/{key}"
chmod 600 *
python3 -c 'import json, os
given = json.load(open("launch.json"))
given["work"] = os.path.join(os.getcwd(), "work")
json.dump(given, open("profile.json", "w"))'
if [ -f access.json ]; then set -- --access="$PWD/access.json"; else set --; fi
exec timeout -s TERM -k 60 {limit} python3 agent.pyz profile.json "$@"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """One that could be started now; `price` in credits an hour, for the whole machine."""

    card: str
    count: int
    instance: str
    cluster: str
    price: float
    vram_gb: float
    memory_gb: float
    cpus: float
    disk_gb: float


def machine(row: Mapping[str, Any], cluster: str) -> Machine | None:
    """A machine that could be started now; None for others and for cards of no table. Joined on family and count:
    slugs differ between the catalogue and the client."""
    closed = ("outOfCapacity", "isTierRestricted", "dwsOnly", "nonOndemand", "byocOnly")
    if any(row.get(name) for name in closed) or row.get("enabled") is False:
        return None
    has = row.get("resources") or {}
    count = int(number(has.get("gpu")) or 0)
    known = cards.find(str(row.get("family") or "") if count else "CPU")
    price = number(row.get("cost"))
    instance = str(row.get("slug") or row.get("instanceId") or "")
    if known is None or price is None or not instance:
        return None
    return Machine(
        card=known.name,
        count=max(1, count),
        instance=instance,
        cluster=str(row.get("clusterId") or cluster),
        price=price,
        vram_gb=known.vram_gb,
        memory_gb=(number(has.get("memoryMb")) or 0.0) / 1000,
        cpus=number(has.get("cpu")) or 0.0,
        disk_gb=number(has.get("storageGb")) or 0.0,
    )


def command(key: str, limit_s: int) -> str:
    """What the job runs: the agent, for so long and no longer. `max_runtime` is no limit (lightning-sdk issue 77)."""
    return _COMMAND.format(key=key, limit=limit_s)


def job_body(name: str, studio: str, chosen: Machine, command: str) -> dict[str, Any]:
    """A Job from a Studio, as the SDK asks for one; nothing in it is secret."""
    return {
        "name": name,
        "spec": {
            "cloudspaceId": studio,
            "clusterId": chosen.cluster,
            "command": command,
            "env": [],
            "image": "",
            "imageClusterCredentials": False,
            "imageSecretRef": "",
            "instanceName": chosen.instance,
            # a second run from the same snapshot would be a second agent of one session
            "maxRunAttempts": 1,
            "pathMappings": [],
            "runId": "",
            "spot": False,
            "volumes": [],
        },
    }


def studio_body(name: str, cluster: str) -> dict[str, Any]:
    """A Studio that holds files and is never started."""
    return {
        "clusterId": cluster,
        "name": name,
        "displayName": name,
        "disableSecrets": False,
        "sandbox": False,
        "seedFiles": [{"path": "main.py", "contents": "print('Hello, Lightning World!')\n"}],
    }


def state(job: Mapping[str, Any]) -> PlatformState:
    """In our words; UNKNOWN for a word that nobody told us of."""
    return _STATES.get(str(job.get("state") or ""), PlatformState.UNKNOWN)


def is_over(job: Mapping[str, Any]) -> bool:
    """It has ended, or the platform knows it as deleted."""
    return state(job) in (PlatformState.ENDED, PlatformState.GONE)


def observation(job: Mapping[str, Any]) -> Observation:
    detail = " ".join(str(job.get(name) or "") for name in ("message", "serverError")).strip()
    cost = number(job.get("totalCost"))
    reason = ""
    if BROKE.search(detail):
        reason = EndReason.QUOTA_EXHAUSTED
    elif job.get("interruptionNoticeReceived"):
        reason = EndReason.PREEMPTED
    if cost is not None:
        detail = f"{detail}; cost so far {cost:.3f} credits (provisional)".removeprefix("; ")
    return Observation(
        state=state(job), raw=str(job.get("state") or ""), detail=detail, reason=reason
    )


def ref(job: Mapping[str, Any], studio: str = "") -> SessionRef:
    """The session's handle: its job and its Studio."""
    return SessionRef(f"{job['id']}.{studio or studio_of(job) or '-'}")


def studio_of(job: Mapping[str, Any]) -> str:
    """The Studio that a job came from, "" if it does not say."""
    return str((job.get("spec") or {}).get("cloudspaceId") or "")


def is_ours(thing: Mapping[str, Any]) -> bool:
    """By its name: nothing else is ever deleted."""
    return str(thing.get("name", "")).startswith(PREFIX)


def is_job_of(key: str, job: Mapping[str, Any]) -> bool:
    """By the first line of its command: names get suffixes when they are taken."""
    told = str((job.get("spec") or {}).get("command", ""))
    return is_ours(job) and told.startswith(f": freegpu-session {key}\n")


def number(value: Any) -> float | None:
    """A finite number, also one in a string; None for anything else."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def moment(value: Any) -> float | None:
    """Epoch seconds of a time as it comes (an ISO string); None for anything else."""
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def age(seconds: float) -> str:
    """For people: 40 s, 12 min, 3.5 h."""
    if seconds < 60:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


# --- options ------------------------------------------------------------------------------------------------


def positive(name: str, option: str, value: Any) -> float:
    """A number above 0. ConfigError."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value <= 0
    ):
        raise ConfigError(f"platform {name}: {option} is {value!r}, not a number above 0")
    return float(value)


def shapes(name: str, given: Any) -> tuple[tuple[str, int], ...]:
    """Cards and how many of each, from words such as T4x4. ConfigError."""
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(
            f"platform {name}: machines is {given!r}, not a list of cards",
            hint='for example ["T4", "CPU"]',
        )
    found = []
    for word in given:
        match = _MACHINE.fullmatch(str(word))
        known = cards.find(match[1]) if match else None
        if match is None or known is None:
            raise ConfigError(f"platform {name}: no card is called {word!r}")
        found.append((known.name, int(match[2] or 1)))
    return tuple(dict.fromkeys(found))


def ceiling(name: str, given: Any) -> float:
    """Credits a month beyond the balance that may be used; only by name and with a figure. ConfigError."""
    if not given:
        return 0.0
    if not isinstance(given, Mapping) or set(given) != {"allow", "ceiling"}:
        raise ConfigError(
            f"platform {name}: paid is not usable",
            hint='for example paid = {allow = "paid-use", ceiling = 5.0}',
        )
    if given["allow"] != "paid-use":
        raise ConfigError(
            f"platform {name}: paid use is allowed by the word paid-use, not {given['allow']!r}"
        )
    return positive(name, "ceiling", given["ceiling"])
