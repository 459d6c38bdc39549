"""`freegpu connect kaggle` and what follows, as they are typed, against a Kaggle on the loopback."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters import registry
from freegpu.cli.app import run
from freegpu.cli.call import Call
from freegpu.cli.output import Output
from freegpu.testing.kaggle_server import KaggleServer
from tests.contract.kaggle import user

pytestmark = pytest.mark.skipif(
    "kaggle" not in registry.known(), reason="the installed package has no entry point kaggle yet"
)
Shell = Callable[..., Any]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KaggleServer]:
    with KaggleServer(tmp_path / "kaggle") as server:
        user(server, tmp_path, monkeypatch)
        yield server


@pytest.fixture
def shell(tmp_path: Path, server: KaggleServer) -> Shell:
    """Runs a command line in this process; (exit code, data or text, stderr)."""

    def call(*argv: str) -> Any:
        out, err = io.StringIO(), io.StringIO()
        around = {"FREEGPU_HOME": str(tmp_path / "home")}
        made = Call(out=Output(stdout=out, stderr=err, environ=around), environ=around)
        code = run(argv, call=made)
        text = out.getvalue()
        return code, json.loads(text) if text.startswith("{") else text, err.getvalue()

    assert call("connect", "store", f"folder:{tmp_path}/store")[0] == 0
    return call


def toml(tmp_path: Path) -> str:
    return (tmp_path / "home" / "freegpu.toml").read_text()


def test_an_account_is_connected_under_its_own_name(
    server: KaggleServer, shell: Shell, tmp_path: Path
) -> None:
    """Quota shown, the user name kept, nothing secret written, and the same again changes nothing."""
    code, out, err = shell("connect", "kaggle")
    assert code == 0, (out, err)
    assert "gpu 30.0 of 30 h left" in out
    assert "kaggle is connected as ada" in out
    assert '[platforms.kaggle]\nadapter = "kaggle"\n' in toml(tmp_path)
    assert 'account = "ada"' in toml(tmp_path)
    assert 'carry = "sealed"' in toml(tmp_path)
    before = toml(tmp_path)
    code, document, _ = shell("connect", "kaggle", "--json")
    assert (code, document["data"]["changed"]) == (0, False)
    assert toml(tmp_path) == before
    for path in (tmp_path / "home").rglob("*"):
        assert path.is_dir() or server.token.encode() not in path.read_bytes()
    code, out, err = shell("doctor", "kaggle")
    assert code == 0, (out, err)


def test_what_expired_before_it_was_connected_is_not_counted(shell: Shell) -> None:
    """A month is looked at, the account is connected now: its weekly quotas were not ours to use."""
    assert shell("connect", "kaggle")[0] == 0
    code, document, _ = shell("report", "--weeks", "4", "--json")
    assert code == 0
    assert document["data"]["pools"] == []
    assert any(
        "kaggle gpu: what expired before" in words and words.endswith("freegpu first knew of it")
        for words in document["data"]["unknown"]
    )


def test_another_account_is_taken_by_connecting_it_and_not_by_itself(
    server: KaggleServer, shell: Shell, tmp_path: Path
) -> None:
    """Credentials that were exchanged are refused, until the person says that this is meant."""
    assert shell("connect", "kaggle")[0] == 0
    server.user = "grace"
    code, out, _ = shell("doctor", "kaggle")
    assert code != 0
    assert "is grace's, and ada was connected" in out
    assert shell("connect", "kaggle")[0] == 0
    assert 'account = "grace"' in toml(tmp_path)


def test_without_credentials_nothing_is_changed(
    server: KaggleServer, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 40, with what to do."""
    monkeypatch.delenv("KAGGLE_API_TOKEN")
    code, document, _ = shell("connect", "kaggle", "--json")
    assert code == 40
    assert "https://www.kaggle.com/settings" in document["errors"][0]["hint"]
    assert "kaggle" not in toml(tmp_path)


def test_a_second_account_is_no_second_platform(server: KaggleServer, shell: Shell) -> None:
    """One account a platform, whatever it is called."""
    assert shell("connect", "kaggle")[0] == 0
    code, document, _ = shell("connect", "kaggle", "--as", "more", "--json")
    assert code == 10
    assert "both accounts on kaggle" in document["errors"][0]["message"]


def test_the_way_of_carrying_is_chosen_and_taken_back(
    server: KaggleServer, shell: Shell, tmp_path: Path
) -> None:
    """Keys of the store go there only by name, and only where they are of use."""
    assert shell("connect", "kaggle", "--credentials", "private-dataset")[0] == 2
    # sessions there do not see a folder of this machine
    line = ("connect", "kaggle", "--carry", "store", "--credentials", "private-dataset", "--json")
    code, document, _ = shell(*line)
    assert code == 40
    assert "cannot open folder:" in document["errors"][0]["message"]
    assert shell("connect", "kaggle")[0] == 0
    assert "credentials" not in toml(tmp_path)


def test_how_sessions_see_the_store_is_said_kept_and_taken_back(
    server: KaggleServer, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that is mounted here as a folder: with its own address sessions reach it. Sealed ones reach nothing."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA1234")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-bucket")
    line = ("connect", "kaggle", "--carry", "store", "--credentials", "private-dataset")
    code, _, err = shell("connect", "kaggle", "--store", "s3://bucket/freegpu")
    assert (code, "--store goes with --carry store" in err) == (2, True)
    code, document, _ = shell(*line, "--json")
    assert code == 40
    assert "--store URL" in document["errors"][0]["hint"]
    assert "kaggle" not in toml(tmp_path)
    code, out, err = shell(*line, "--store", "s3://bucket/freegpu")
    assert code == 0, (out, err)
    assert 'store = "s3://bucket/freegpu"' in toml(tmp_path)
    assert shell(*line)[0] == 0, "what was said before still holds"
    assert shell("doctor", "kaggle")[0] == 0
    assert "secret-of-the-bucket" not in toml(tmp_path)
    code, document, _ = shell(*line, "--store", "", "--json")
    assert code == 40, "without it, sessions would look for a folder of this machine"
    assert 'store = "s3://bucket/freegpu"' in toml(tmp_path), "what does not work is not written"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://me:hunter2@host/bucket", "holds a password"),
        ("folder:shared/freegpu", "a relative folder"),
        ("shared", "a relative folder"),
        ("gopher://hole", "no store that freegpu knows"),
        ("s3;//bucket", "a relative folder"),
    ],
)
def test_a_store_that_no_session_could_mean_is_refused(
    server: KaggleServer, shell: Shell, tmp_path: Path, url: str, says: str
) -> None:
    """Exit code 10 in one sentence, before anything is asked or written; a password is not repeated."""
    line = ("connect", "kaggle", "--carry", "store", "--store", url, "--json")
    code, document, err = shell(*line)
    assert code == 10
    assert says in document["errors"][0]["message"]
    assert "hunter2" not in json.dumps(document) + err
    assert "kaggle" not in toml(tmp_path)


@pytest.mark.parametrize("name", ["kaggle", "lab"])
def test_a_cell_is_for_homes_that_have_not_connected_kaggle(
    server: KaggleServer, shell: Shell, tmp_path: Path, name: str
) -> None:
    """Afterwards one clear sentence: a notebook by hand would use the same quota."""
    line = ("cell", "kaggle", "--store", "folder:/kaggle/working/store", "--json")
    code, document, _ = shell(*line)
    assert (code, document["data"]["title"]) == (0, "Kaggle notebook (interactive)")
    assert shell("connect", "kaggle", "--as", name)[0] == 0
    code, document, _ = shell(*line)
    assert code == 10
    assert "starts its sessions by itself and needs no cell" in document["errors"][0]["message"]
