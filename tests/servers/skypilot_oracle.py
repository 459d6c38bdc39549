"""Reads task files as SkyPilot does and tells what it read, as JSON. Run by the Python that has SkyPilot.

Stdin: {"cards": [[name, GB, maker]...], "files": [{"text", "envs", "secrets"}...]}. Last line of stdout: its
version, the fields of its schema, one reading or error a file, the same for the examples that it ships, and every
attempt to reach the network (each of which is stopped). Knows nothing of freegpu.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

ASKED: list[str] = []
_NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")


def fence(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook: nothing that Python does goes around it, and it cannot be taken out again."""
    if event in _NETWORK and not (event == "socket.connect" and isinstance(args[1], (str, bytes))):
        ASKED.append(f"{event} {args!r}"[:200])
        message = "the network is fenced off"
        raise OSError(message)


def fence_holds() -> bool:
    import socket

    try:
        socket.create_connection(("192.0.2.1", 9), timeout=1)
    except OSError as error:
        held = "fenced off" in str(error) and len(ASKED) == 1
        ASKED.clear()
        return held
    return False


def write_catalog(cards: list[list[Any]]) -> None:
    """The list of cards that SkyPilot would download, where it keeps it."""
    from sky.skylet import constants

    folder = os.path.expanduser(f"~/.sky/catalogs/{constants.CATALOG_SCHEMA_VERSION}/common")
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/accelerators.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["AcceleratorName", "Clouds"])
        rows.writerows([name, "['AWS']"] for name, _, _ in cards)
    with open(f"{folder}/metadata.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["GPU", "MemoryGB", "Manufacturer"])
        rows.writerows([name, size, maker] for name, size, maker in cards if size)


def one_resource(resources: Any) -> dict[str, Any]:
    from sky.utils import accelerator_registry

    cards = []
    for name, count in (resources._accelerators or {}).items():
        cards.append([accelerator_registry.canonicalize_accelerator_name(name, None), count])
    return {
        "cards": cards,
        "cpus": resources.cpus,
        "memory": resources.memory,
        "disk": resources._disk_size,
        "spot": resources.use_spot,
        "infra": resources.infra.to_str(),
    }


def reading(file: dict[str, Any]) -> dict[str, Any]:
    """As `sky launch FILE --env ... --secret ...` loads and checks it, before any cloud is looked at."""
    from sky.utils import dag_utils

    path = Path.home() / "file.yaml"
    path.write_text(file["text"], encoding="utf-8")
    dag = dag_utils.load_chain_dag_from_yaml(
        str(path), [tuple(e) for e in file["envs"]], [tuple(s) for s in file["secrets"]]
    )
    if len(dag.tasks) > 1:
        return {"other": "a pipeline"}
    (task,) = dag.tasks
    if task.service is not None:
        return {"other": "a service"}
    task.validate_name()
    task.validate_run()
    if isinstance(task.workdir, str):
        task.expand_and_validate_workdir()
    if not any("://" in source for source in (task.file_mounts or {}).values()):
        task.expand_and_validate_file_mounts()
    return {
        "name": task.name,
        "envs": task.envs,
        "secrets": sorted({*task.secrets, *(ref.name for ref in task._managed_secret_refs)}),
        "workdir": task.workdir,
        "setup": task.setup,
        "run": task.run,
        "mounts": task.file_mounts or {},
        "buckets": sorted(task.storage_mounts),
        "num_nodes": task.num_nodes,
        "ordered": isinstance(task.resources, list),
        "resources": [one_resource(each) for each in task.resources],
    }


def attempt(file: dict[str, Any]) -> dict[str, Any]:
    try:
        return reading(file)
    except BaseException as error:  # SkyPilot asserts, exits and raises whatever comes
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def fields() -> dict[str, list[str]]:
    """Every field of its schema, and the other names of fields."""
    from sky import resources as sky_resources
    from sky.utils import schemas

    whole = schemas.get_resources_schema()["properties"]
    return {
        "": sorted(schemas.get_task_schema()["properties"]),
        "resources": sorted([*whole, *sky_resources.RESOURCE_CONFIG_ALIASES]),
        "any_of": sorted(whole["any_of"]["items"]["properties"]),
        "ordered": sorted(whole["ordered"]["items"]["properties"]),
    }


def variables() -> list[str]:
    """The names beginning with SKYPILOT_ that it knows, or writes in what starts a task."""
    import sky
    from sky.skylet import constants

    known = {value for value in vars(constants).values() if isinstance(value, str)}
    source = Path(sky.__file__).parent / "backends" / "cloud_vm_ray_backend.py"
    known.update(re.findall(r"SKYPILOT_[A-Z_]+", source.read_text(encoding="utf-8")))
    return sorted(name for name in known if re.fullmatch(r"SKYPILOT_[A-Z_]+", name))


def main() -> None:
    sys.addaudithook(fence)
    held = fence_holds()
    question = json.load(sys.stdin)
    write_catalog(question["cards"])
    import sky
    from sky.skylet import constants

    examples = sorted(Path(sky.__file__).parent.glob("recipes/examples/*.yaml"))
    published = [
        {"text": path.read_text(encoding="utf-8"), "envs": [], "secrets": []} for path in examples
    ]
    files = [attempt(file) for file in question["files"]]
    answer = {
        "version": sky.__version__,
        "fence": held,
        "asked": ASKED,
        "fields": fields(),
        "files": files,
        "published": [
            {"name": path.name, "text": file["text"], "read": attempt(file)}
            for path, file in zip(examples, published, strict=True)
        ],
        "ignore_file": constants.SKY_IGNORE_FILE,
        "variables": variables(),
    }
    print(json.dumps(answer))


main()
