"""Opening the shared store: first use, later use, and every way in which it is not ours or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from freegpu import config
from freegpu.agent.stores import FORMAT
from freegpu.agent.stores.base import Source, Store, StoreGone
from freegpu.agent.stores.folder import FolderStore
from freegpu.config import Settings
from freegpu.errors import ConfigError, ForeignStoreError, SharedStoreError
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.shared import folder_of, open_shared, out_of_reach
from freegpu.testing.clock import ManualClock


class Desk:
    """A home's settings and ledger."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.home = home
        self.ledger = Ledger.open(str(home / "state.db"), clock=ManualClock())

    def settings(self, store: str | None = None) -> Settings:
        """As if FREEGPU_STORE were set, or as they are by default."""
        environ = {} if store is None else {"FREEGPU_STORE": store}
        return config.load(environ, home=self.home)

    def open(self, store: str | None = None, home_id: str = "h-mine") -> Store:
        return open_shared(self.settings(store), self.ledger, home_id)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "home")
    yield made
    made.ledger.close()


def mark(folder: Path, home: str = "h-mine", version: int = FORMAT) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "freegpu.json").write_text(json.dumps({"home": home, "format": version}))


def test_the_default_store_is_made_in_the_home_and_bears_its_mark(desk: Desk) -> None:
    """First use makes and marks it; the second finds it."""
    store = desk.open()
    marker = json.loads(store.get("freegpu.json"))
    assert marker == {"home": "h-mine", "format": FORMAT}
    store.put("jobs/x", b"1")
    assert desk.open().get("jobs/x") == b"1"


@pytest.mark.parametrize("bare", [True, False])
def test_a_store_elsewhere_is_made_if_its_parent_is_there(
    desk: Desk, tmp_path: Path, bare: bool
) -> None:
    """By URL or by path, an empty folder or none."""
    folder = tmp_path / "my drive"
    store = desk.open(str(folder) if bare else f"folder:{folder}")
    assert store.get("freegpu.json") == (folder / "freegpu.json").read_bytes()
    (tmp_path / "empty").mkdir()
    desk.open(str(tmp_path / "empty"))
    assert (tmp_path / "empty" / "freegpu.json").is_file()


def test_a_store_below_a_folder_that_is_not_there_is_not_made(desk: Desk, tmp_path: Path) -> None:
    """A disk that is not mounted must not be replaced by a folder on the disk beneath it."""
    with pytest.raises(SharedStoreError, match=r"parent folder .*unmounted") as caught:
        desk.open(f"folder:{tmp_path}/unmounted/store")
    assert "mount it" in caught.value.hint
    assert not (tmp_path / "unmounted").exists()


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "other files"])
def test_a_store_that_was_used_and_is_gone_is_never_made_anew(
    desk: Desk, tmp_path: Path, left: str
) -> None:
    """Its checkpoints are somewhere else: only a person knows whether a disk is merely unplugged."""
    url, folder = f"folder:{tmp_path / 'disk'}", tmp_path / "disk"
    desk.open(url).put("jobs/x", b"1")
    folder.rename(tmp_path / "unplugged")
    if left != "nothing":
        folder.mkdir()
    if left == "other files":
        (folder / "holiday.jpg").write_bytes(b"?")
    before = sorted(tmp_path.rglob("*"))
    for _ in range(2):
        with pytest.raises(SharedStoreError, match="is gone") as caught:
            desk.open(url)
        assert "mount or restore" in caught.value.hint
    assert sorted(tmp_path.rglob("*")) == before
    if left == "other files":
        (folder / "holiday.jpg").unlink()
    if left != "nothing":
        folder.rmdir()
    (tmp_path / "unplugged").rename(folder)
    assert desk.open(url).get("jobs/x") == b"1"


def test_another_home_s_store_is_refused_and_left_as_it_is(desk: Desk, tmp_path: Path) -> None:
    """Both homes are named, and where the setting comes from."""
    mark(tmp_path / "theirs", home="h-theirs")
    with pytest.raises(
        ForeignStoreError, match="belongs to home h-theirs, not to h-mine"
    ) as caught:
        desk.open(str(tmp_path / "theirs"))
    assert "FREEGPU_STORE" in caught.value.hint
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["freegpu.json"]


def test_a_store_of_a_newer_format_is_refused_even_if_it_is_ours(
    desk: Desk, tmp_path: Path
) -> None:
    """An older freegpu would misread it."""
    mark(tmp_path / "newer", version=FORMAT + 1)
    with pytest.raises(ForeignStoreError, match=f"format {FORMAT + 1}"):
        desk.open(str(tmp_path / "newer"))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"home": "h-mine"}', '{"home": 1, "format": "x"}']
)
def test_a_torn_mark_is_an_error_and_not_overwritten(desk: Desk, tmp_path: Path, text: str) -> None:
    """It may still be on its way; whose store it is nobody knows."""
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "freegpu.json").write_text(text)
    with pytest.raises(SharedStoreError, match="not readable"):
        desk.open(str(tmp_path / "torn"))
    assert (tmp_path / "torn" / "freegpu.json").read_text() == text


def test_an_unknown_scheme_is_a_configuration_error_that_names_its_origin(desk: Desk) -> None:
    """A typing error in the environment is looked for in the environment."""
    with pytest.raises(ConfigError, match=r"FREEGPU_STORE.*cannot be used.*no store speaks 'sftq'"):
        desk.open("sftq://host/folder")


def test_a_file_where_the_store_should_be_is_told(desk: Desk, tmp_path: Path) -> None:
    """Neither removed nor written to."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SharedStoreError):
        desk.open(str(tmp_path / "file"))
    with pytest.raises(SharedStoreError, match=r"cannot be made|parent folder"):
        desk.open(str(tmp_path / "file" / "store"))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_may_not_be_written_is_told(desk: Desk, tmp_path: Path) -> None:
    """An empty folder of somebody else's."""
    folder = tmp_path / "readonly"
    folder.mkdir(mode=0o500)
    with pytest.raises(SharedStoreError, match="cannot be written"):
        desk.open(str(folder))


def test_a_store_that_refuses_its_mark_is_told_and_counts_as_never_used(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died in this very moment: the next attempt may still make it."""

    def refuse(self: FolderStore, key: str, source: Source) -> bool:
        raise StoreGone("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(FolderStore, "put_new", refuse)
        with pytest.raises(SharedStoreError, match="cannot be written: the store does not answer"):
            desk.open(str(tmp_path / "new"))
    desk.open(str(tmp_path / "new"))


def test_a_home_that_loses_the_race_for_a_new_store_finds_out(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's mark appears between the look and the write."""
    put_new = FolderStore.put_new

    def late(self: FolderStore, key: str, source: Source) -> bool:
        mark(tmp_path / "new", home="h-quick")
        return put_new(self, key, source)

    monkeypatch.setattr(FolderStore, "put_new", late)
    with pytest.raises(ForeignStoreError, match="h-quick"):
        desk.open(str(tmp_path / "new"))


def test_each_store_is_remembered_for_itself(desk: Desk, tmp_path: Path) -> None:
    """Moving to a new store is possible; the old one stays remembered as used."""
    desk.open(str(tmp_path / "old"))
    desk.open(str(tmp_path / "new"))
    (tmp_path / "old" / "freegpu.json").unlink()
    with pytest.raises(SharedStoreError, match="is gone"):
        desk.open(str(tmp_path / "old"))


def test_the_folder_behind_a_url_is_known() -> None:
    """For hints and doctor; other schemes have none."""
    assert folder_of("folder:/a b/c") == Path("/a b/c")
    assert folder_of("/a/b") == Path("/a/b")
    assert folder_of("/a/with:colon") == Path("/a/with:colon")
    assert folder_of("s3:bucket/prefix") is None


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("s3://bucket/x?endpoint=http://127.0.0.1:9000", "loopback"),
        ("s3://bucket/x?endpoint=http://localhost:9000", "loopback"),
        ("s3://bucket/x?endpoint=http://[::1]:9000", "loopback"),
        ("s3://bucket/x?endpoint=http://192.168.1.5:9000", "private"),
        ("s3://bucket/x?endpoint=https://10.0.0.5", "private"),
        ("s3://bucket/x?endpoint=http://nas:9000", "private"),
        ("s3://bucket/x?endpoint=http://nas.local:9000", "private"),
        ("s3://bucket/x?endpoint=https://8.8.8.8", ""),
        ("s3://bucket/x?endpoint=https://s3.example.org", ""),
        ("s3://bucket/x", ""),
        ("s3://", ""),
        ("folder:/data", ""),
        ("drive:freegpu", ""),
    ],
)
def test_an_address_that_means_nothing_elsewhere_is_known_for_one(url: str, kind: str) -> None:
    """By the URL alone, without asking anybody."""
    assert out_of_reach(url) == kind
