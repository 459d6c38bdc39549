"""SkyPilot itself reads the same files as freegpu: equal, or different as the reference page says. No network."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from freegpu.errors import JobSpecError
from freegpu.jobs.model import JobSpec
from freegpu.jobs.spec import loads
from freegpu.jobs.table import RESOURCES, ROOT
from tests.contract.skypilot_differences import DIFFERENT, Different
from tests.contract.skypilot_files import CATALOG, ENVIRON, REFUSED, SAME, File
from tests.servers.skypilot import SKYPILOT, ask

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs/reference/skypilot.md"
FILES = (*SAME, *(File(text) for text in REFUSED), *DIFFERENT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every file lies, and the home of both readers."""
    # one for all processes of the run: SkyPilot takes seconds to import
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    home = shared / "skypilot-files"
    for name in ("code", "data"):
        (home / name).mkdir(parents=True, exist_ok=True)
    (home / "one.txt").write_text("1")
    return home


@pytest.fixture(scope="module")
def answer(folder: Path) -> Any:
    """What SkyPilot makes of all files, asked once."""
    kept = folder / "answer.json"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            files = [{"text": f.text, "envs": f.envs, "secrets": f.secrets} for f in FILES]
            told = ask({"cards": CATALOG, "files": files}, folder)
            (folder / "new.json").write_text(json.dumps(told))
            (folder / "new.json").rename(kept)
    return json.loads(kept.read_text())


@pytest.fixture(scope="module")
def readings(answer: Any, folder: Path) -> Mapping[File, Any]:
    """File -> SkyPilot's reading in our words, or "refused"."""
    read = [theirs(one, folder) for one in answer["files"]]
    return dict(zip(FILES, read, strict=True))


def theirs(read: Mapping[str, Any], folder: Path) -> Any:
    """SkyPilot's reading as we would tell it."""
    if "error" in read or "other" in read:
        return "refused" if "error" in read else read["other"]
    each: Sequence[Any] = read["resources"]
    cards = [f"{name}:{count:g}" for one in each for name, count in one["cards"] or [("CPU", 1)]]
    if not any(one["cards"] for one in each):
        cards = []
    ordered = read["ordered"] and len(each) > 1
    return {
        "name": read["name"] or "plain",
        "envs": read["envs"],
        "secrets": read["secrets"],
        "setup": read["setup"] or "",
        "run": read["run"],
        "workdir": _local(read["workdir"], folder),
        "mounts": {
            str(PurePosixPath(target.removeprefix("~/sky_workdir/"))): _local(source, folder)
            for target, source in read["mounts"].items()
        },
        "buckets": read["buckets"],
        "num_nodes": read["num_nodes"],
        "cards": list(dict.fromkeys(cards)) if ordered else sorted(set(cards)),
        "ordered": ordered and len(set(cards)) > 1,
        "cpus": _amount(each, "cpus"),
        "memory": _amount(each, "memory"),
        "disk": _amount(each, "disk"),
        "exactly": any(one[name] and one[name][-1] != "+" for one in each for name in _DEMANDS),
        "only_cpu": not cards,
    }


def _amount(each: Sequence[Any], name: str) -> Any:
    """The demand of all resources where they agree."""
    amounts = []
    for one in each:
        text = str(one[name] or 0).rstrip("+")
        size = float(text.rstrip("x"))
        amounts.append(size * float(one["cpus"].rstrip("+")) if text.endswith("x") else size)
    return amounts[0] if len(set(amounts)) == 1 else sorted(amounts)


def _local(path: Any, folder: Path) -> Any:
    """SkyPilot sees a path from where the command runs: here, the folder of the file."""
    if not isinstance(path, str) or "://" in path:
        return path or ""
    return os.path.normpath(os.path.join(folder, path.replace("~", str(folder), 1)))


def ours(file: File, folder: Path) -> Any:
    """freegpu's reading, as plainly; "refused: " with the message where it refuses."""
    overrides = [f"envs.{name}={value}" for name, value in file.envs]
    overrides += [f"secrets.{name}={value}" for name, value in file.secrets]
    try:
        loaded = loads(
            file.text,
            path=folder / file.lies_in / "plain.yaml",
            overrides=overrides,
            environ={**ENVIRON, "HOME": str(folder)},
        )
    except JobSpecError as error:
        return f"refused: {error.message}"
    (spec,) = loaded.specs
    return {**_plain(spec), "secrets": sorted(loaded.secrets)}


def _plain(spec: JobSpec) -> dict[str, Any]:
    needs = spec.needs
    cards = [f"{one.card}:{one.count}" for one in needs.accelerators]
    return {
        "name": spec.name,
        "envs": dict(spec.envs),
        "setup": spec.setup,
        "run": spec.run,
        "workdir": spec.workdir,
        "mounts": dict(spec.file_mounts),
        "buckets": [],
        "num_nodes": 1,
        "cards": cards if needs.ordered else sorted(cards),
        "ordered": needs.ordered,
        "cpus": needs.cpus,
        "memory": needs.memory_gb,
        "disk": needs.disk_gb,
        **({"vram": needs.vram_gb} if needs.vram_gb else {}),
    }


_DEMANDS = ("cpus", "memory")
#: parts of a reading that freegpu has no word for
_SKY_ONLY = ("exactly", "only_cpu")
#: freegpu's names of cards that SkyPilot spells in another way
_SPELT = {"tpu-v5litepod-8:1": "tpu-v5e-8:1", "tpu-v5litepod-1:1": "tpu-v5e-1:1"}


def test_the_witness_is_the_one_that_the_page_names_and_was_alone(answer: Any) -> None:
    """The pinned version, whose every call to the network would have been stopped and seen."""
    assert answer["version"] == SKYPILOT.version
    assert f"SkyPilot {SKYPILOT.version}" in PAGE.read_text()
    assert answer["fence"] is True
    assert answer["asked"] == []


def test_both_read_the_same(readings: Mapping[File, Any], folder: Path) -> None:
    """Names, variables, secrets, folders, cards and their order, counts, sizes: equal in every part."""
    wrong = []
    for file in SAME:
        mine, sky = ours(file, folder), _in_our_words(readings[file])
        if mine != sky:
            wrong.append((file, mine, sky))
    assert not wrong, _shown(wrong)


def test_neither_takes_what_is_wrong(
    readings: Mapping[File, Any], folder: Path, answer: Any
) -> None:
    """A file that SkyPilot refuses is no job here either, but for what the page lists."""
    files = [File(text) for text in REFUSED]
    wrong = [
        (file, mine, readings[file])
        for file in files
        if not str(mine := ours(file, folder)).startswith("refused: ")
        or readings[file] != "refused"
    ]
    assert not wrong, _shown(wrong)


def test_what_differs_differs_as_the_page_says(readings: Mapping[File, Any], folder: Path) -> None:
    """Both readings, part by part; where freegpu refuses, the words of the refusal."""
    wrong = []
    for file in DIFFERENT:
        mine, sky = ours(file, folder), readings[file]
        if not (_matches(mine, file.ours) and _matches(sky, file.sky)):
            wrong.append((file, mine, sky))
    assert not wrong, _shown(wrong)


def test_every_difference_has_its_row_and_every_row_its_file() -> None:
    """A row that no file proves is a claim; a difference without a row is a surprise."""
    table = PAGE.read_text().split("## Where SkyPilot differs\n")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    rows = {line.split(" | ")[0].removeprefix("| ") for line in lines}
    assert rows == {file.row for file in DIFFERENT} | {"`.skyignore`", "`SKYPILOT_*` variables"}


@pytest.mark.parametrize("section", ["", "resources", "any_of", "ordered"])
def test_every_field_of_its_schema_is_mapped_ignored_or_refused(answer: Any, section: str) -> None:
    """A field that SkyPilot adds is noticed here; one that it dropped is read on for older files."""
    group = ROOT if not section else RESOURCES
    known = {one.name for one in group.fields}
    assert set(answer["fields"][section]) - known == set()
    if not section:
        assert known - set(answer["fields"][""]) == {"freegpu", "experimental", "storage_mounts"}
    if section == "resources":
        assert known - set(answer["fields"][section]) == {"spot_recovery"}


def test_the_examples_that_it_ships_are_read_or_refused_by_name(answer: Any, folder: Path) -> None:
    """SkyPilot's own: what freegpu takes it reads alike; what it refuses it names the field of."""
    assert len(answer["published"]) >= 4
    told = {}
    for example in answer["published"]:
        sky = _in_our_words(theirs(example["read"], folder))
        mine = ours(File(example["text"]), folder)
        told[example["name"]] = mine if isinstance(mine, str) else mine == sky
    assert told == {
        "basic_cluster.yaml": True,
        "basic_managed_job.yaml": True,
        "basic_pool.yaml": "refused: pool is not possible here: freegpu runs jobs that end, it keeps no pool",
        "basic_volume.yaml": "refused: unknown field 'type'",  # no job there either
    }


def test_its_names_of_things_outside_the_file_are_those_of_the_page(answer: Any) -> None:
    """The ignore file, and the variables that scripts of SkyPilot read."""
    from freegpu.agent import place

    assert answer["ignore_file"] == ".skyignore"
    source = Path(place.__file__).read_text()
    set_here = {word for word in source.split('"') if word.startswith("SKYPILOT_")}
    assert set_here
    assert set_here <= set(answer["variables"])


def _in_our_words(sky: Any) -> Any:
    """A reading of SkyPilot's less what freegpu has no word for, with freegpu's names of cards."""
    if not isinstance(sky, dict):
        return sky
    kept = {key: value for key, value in sky.items() if key not in _SKY_ONLY}
    return {**kept, "cards": [_SPELT.get(card, card) for card in sky["cards"]]}


def _matches(read: Any, wanted: Any) -> bool:
    """Parts of a reading, or the beginning of a refusal."""
    if isinstance(wanted, str) or isinstance(read, str):
        return isinstance(wanted, str) and isinstance(read, str) and wanted in read
    return all(read.get(key) == value for key, value in wanted.items())


def _shown(wrong: Sequence[tuple[File, Any, Any]]) -> str:
    lines = []
    for file, mine, sky in wrong:
        lines.append(f"\n{file.text!r} {file.envs or ''}")
        if isinstance(mine, dict) and isinstance(sky, dict) and not isinstance(file, Different):
            parts = {
                k: (mine.get(k), sky.get(k)) for k in {*mine, *sky} if mine.get(k) != sky.get(k)
            }
            lines.append(f"   freegpu, SkyPilot: {parts}")
        else:
            lines.append(f"   freegpu: {mine}\n   SkyPilot: {sky}")
    return "\n".join(lines)
