"""Changing freegpu.toml leaves everything else as its owner wrote it."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path

import pytest

from freegpu.errors import ConfigError
from freegpu.settings_file import set_text

OWNERS = """\
# my settings
tick_s = 10   # slow

# the lab
[platforms.lab]
adapter = "my_lab.freegpu:LabAdapter"  # ours
cards = 2
"""


def test_a_new_value_goes_to_the_front_and_the_rest_stays(tmp_path: Path) -> None:
    """Before the first table, where TOML wants it, and between no comment and what that speaks of."""
    path = tmp_path / "freegpu.toml"
    path.write_text(OWNERS)
    assert set_text(tmp_path, "store", "folder:/x y") is True
    text = path.read_text()
    assert tomllib.loads(text)["store"] == "folder:/x y"
    assert text == f'store = "folder:/x y"\n{OWNERS}'


def test_a_value_is_replaced_in_its_place_with_its_comment(tmp_path: Path) -> None:
    """Nothing else moves."""
    path = tmp_path / "freegpu.toml"
    path.write_text(f'store = "folder:/old"  # the disk\n{OWNERS}')
    set_text(tmp_path, "store", "sftp://h/new")
    assert path.read_text() == f'store = "sftp://h/new"  # the disk\n{OWNERS}'


def test_the_same_value_changes_nothing(tmp_path: Path) -> None:
    """Not even the file's time."""
    path = tmp_path / "freegpu.toml"
    path.write_text('store="folder:/x"')
    before = path.stat().st_mtime_ns, path.stat().st_ino
    assert set_text(tmp_path, "store", "folder:/x") is False
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_a_file_that_is_not_there_is_made_private(tmp_path: Path) -> None:
    """Readable by its owner alone; one that is there keeps its mode."""
    path = tmp_path / "freegpu.toml"
    set_text(tmp_path, "store", 'folder:/with "quotes"')
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert tomllib.loads(path.read_text()) == {"store": 'folder:/with "quotes"'}
    path.chmod(0o644)
    set_text(tmp_path, "store", "folder:/y")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["freegpu.toml"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    """Into somebody's dotfiles, for example."""
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles" / "gpu.toml").write_text("tick_s = 7\n")
    (tmp_path / "freegpu.toml").symlink_to(tmp_path / "dotfiles" / "gpu.toml")
    set_text(tmp_path, "store", "folder:/x")
    assert (tmp_path / "freegpu.toml").is_symlink()
    assert (tmp_path / "dotfiles" / "gpu.toml").read_text() == 'store = "folder:/x"\ntick_s = 7\n'


def test_a_file_of_windows_keeps_its_line_ends_and_its_mark(tmp_path: Path) -> None:
    """CR LF, and the byte order mark that Notepad writes."""
    path = tmp_path / "freegpu.toml"
    path.write_bytes(b"\xef\xbb\xbf# hi\r\ntick_s = 7\r\n")
    set_text(tmp_path, "store", "folder:/x")
    assert path.read_bytes() == b'\xef\xbb\xbfstore = "folder:/x"\r\n# hi\r\ntick_s = 7\r\n'


@pytest.mark.parametrize("raw", [b"tick_s = ", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_a_file_that_cannot_be_understood_is_left_alone(tmp_path: Path, raw: bytes) -> None:
    """It is named, and nothing in it is lost."""
    path = tmp_path / "freegpu.toml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"freegpu\.toml"):
        set_text(tmp_path, "store", "folder:/x")
    assert path.read_bytes() == raw


def test_a_crash_before_the_end_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one takes its place in one step; a full disk is a sentence."""
    path = tmp_path / "freegpu.toml"
    path.write_text(OWNERS)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        set_text(tmp_path, "store", "folder:/x")
    assert path.read_text() == OWNERS
    assert [entry.name for entry in tmp_path.iterdir()] == ["freegpu.toml"]
