"""What SkyPilot (0.14.1) has and freegpu has not: fields without a meaning here, and cards that no free platform has.

Data only. A field that is ignored does no harm and is told in one line; one that is refused would leave the job
without what it needs. A test holds both lists to SkyPilot's own schema; the reference page shows them.
"""

from __future__ import annotations

from freegpu.jobs.kinds import Field

__all__ = ["CARDS_ELSEWHERE", "RESOURCES_WITHOUT_MEANING", "ROOT_WITHOUT_MEANING"]

_ANY_PLACE = "freegpu chooses the place; freegpu.platforms narrows it"
_BOOKKEEPING = "it is SkyPilot's own bookkeeping"

RESOURCES_WITHOUT_MEANING: tuple[Field, ...] = (
    Field(
        name="use_spot", ignored="every free session may end early; checkpoints carry the job on"
    ),
    Field(name="infra", ignored=_ANY_PLACE),
    Field(name="cloud", ignored=_ANY_PLACE),
    Field(name="region", ignored=_ANY_PLACE),
    Field(name="zone", ignored=_ANY_PLACE),
    Field(
        name="instance_type", ignored=f"{_ANY_PLACE}, and accelerators, cpus and memory the size"
    ),
    Field(name="image_id", ignored="a session runs in its platform's own image; use setup"),
    Field(name="job_recovery", ignored="freegpu.retry says how often a job is tried again"),
    Field(name="spot_recovery", ignored="freegpu.retry says how often a job is tried again"),
    Field(name="labels", ignored="free platforms have no labels"),
    Field(name="autostop", ignored="a session ends by itself when it has no work"),
    Field(name="ports", ignored="a session cannot be reached from outside"),
    Field(name="disk_tier", ignored="free platforms have one kind of disk"),
    Field(name="ephemeral_storage", ignored="free platforms have one kind of disk"),
    Field(name="local_disk", ignored="free platforms have one kind of disk"),
    Field(name="network_tier", ignored="free platforms have one kind of network"),
    Field(name="accelerator_args", ignored="the platform sets its accelerators up itself"),
    Field(name="max_hourly_cost", ignored="freegpu uses free hours only"),
    Field(name="priority", ignored="freegpu.priority says how urgent a job is"),
    Field(name="priority_class", ignored="freegpu.priority says how urgent a job is"),
    Field(name="_cluster_config_overrides", ignored=_BOOKKEEPING),
    Field(name="_docker_login_config", ignored=_BOOKKEEPING),
    Field(name="_is_image_managed", ignored=_BOOKKEEPING),
    Field(name="_no_missing_accel_warnings", ignored=_BOOKKEEPING),
    Field(name="_requires_fuse", ignored=_BOOKKEEPING),
    Field(name="volumes", refused="sessions have no volumes that outlive them; use file_mounts"),
)

ROOT_WITHOUT_MEANING: tuple[Field, ...] = (
    Field(
        name="config",
        ignored="it configures SkyPilot itself; instead of config.hooks, let run act on SIGTERM",
    ),
    Field(name="event_callback", ignored="freegpu keeps events in its ledger"),
    Field(name="inputs", ignored="it only feeds SkyPilot's cost estimate"),
    Field(name="outputs", ignored="it only feeds SkyPilot's cost estimate; see freegpu.outputs"),
    Field(name="experimental", ignored="it configures SkyPilot itself"),
    Field(name="api_server_access", ignored="it configures SkyPilot itself"),
    Field(name="file_mounts_mapping", ignored=_BOOKKEEPING),
    Field(name="_metadata", ignored=_BOOKKEEPING),
    Field(name="service", refused="freegpu runs jobs that end, it does not serve"),
    Field(name="pool", refused="freegpu runs jobs that end, it keeps no pool"),
    Field(name="volumes", refused="sessions have no volumes that outlive them; use file_mounts"),
    Field(name="volume_mounts", refused="sessions have no volumes; use file_mounts"),
    Field(name="storage_mounts", refused="cloud buckets cannot be mounted; download in setup"),
    Field(name="managed_secrets", refused="they lie on SkyPilot's server; use secrets"),
)

#: Names in SkyPilot's catalog (skypilot-catalog, v8) of cards that no platform known here gives away. A file may
#: name them beside others. As folded by `folded`; TPUs stand for all their sizes.
CARDS_ELSEWHERE = frozenset(
    [
        "a40",
        "a800",
        "b300",
        "gb200",
        "gb300",
        "gh200",
        "h100mega",
        "h100nvl",
        "h100nvlink",
        "inferentia",
        "inferentia2",
        "l40",
        "m60",
        "p4",
        "radeonmi25",
        "radeonprov520",
        "rtx2000ada",
        "rtx4000ada",
        "rtx5060",
        "rtxa4500",
        "t4g",
        "tpuv2",
        "tpuv3",
        "tpuv4",
        "tpuv5p",
        "tpuv6e",
        "tpuv5litepod",
        "trainium",
        "trainium2",
    ]
)
