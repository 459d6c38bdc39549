"""`freegpu connect ssh` and what follows, as they are typed, against a machine behind a real sshd."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from freegpu.cli.connect import ssh as command
from tests.contract.sshd import SshHost, at_home, need_sshd, typed
from tests.servers.rig_ssh import rig

Shell = Callable[..., Any]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHost]:
    with at_home(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Runs a command line in this process; (exit code, data or text, stderr)."""

    def call(*argv: str) -> Any:
        code, text, told = typed(tmp_path / "home", *argv)
        return code, json.loads(text) if text.startswith("{") else text, told

    return call


def seen_from_there(tmp_path: Path, shell: Shell) -> str:
    """A store in a folder that both sides see, in use."""
    (tmp_path / "shared").mkdir()
    assert shell("connect", "store", f"folder:{tmp_path}/shared")[0] == 0
    return f"folder:{tmp_path}/shared"


def fingerprint(host: SshHost) -> str:
    _, keygen = need_sshd()
    key = str(host.folder / "host_key.pub")
    return subprocess.check_output([keygen, "-lf", key], text=True).split()[1]


def toml(tmp_path: Path) -> str:
    return (tmp_path / "home" / "freegpu.toml").read_text()


def test_a_host_whose_key_is_known_is_connected_at_once(
    host: SshHost, shell: Shell, tmp_path: Path
) -> None:
    """Findings, a table with nothing secret in it, and the same again changes nothing."""
    url = seen_from_there(tmp_path, shell)
    line = ("connect", "ssh", host.host, "--as", "lab", "--store", url)
    code, out, err = shell(*line)
    assert code == 0, (out, err)
    assert "Tesla T4 (free)" in out
    assert f"lab is connected as {host.host}" in out
    assert f'[platforms.lab]\nadapter = "ssh"\nhost = "{host.host}"\nstore = "{url}"' in toml(
        tmp_path
    )
    before = toml(tmp_path)
    code, document, _ = shell(*line, "--json")
    assert (code, document["data"]["changed"]) == (0, False)
    assert toml(tmp_path) == before
    assert not (tmp_path / "home" / "known_hosts").exists()


def test_a_store_that_is_not_there_is_no_connection(
    host: SshHost, shell: Shell, tmp_path: Path
) -> None:
    """A folder of this machine that nobody said is seen from there; and one that is not."""
    seen_from_there(tmp_path, shell)
    code, _, _ = shell("connect", "ssh", host.host, "--as", "lab")
    assert code == 40
    code, document, _ = shell(
        "connect", "ssh", host.host, "--as", "lab", "--store", f"folder:{tmp_path}/none", "--json"
    )
    assert code == 40
    assert any("none" in error["message"] for error in document["errors"])
    assert "platforms" not in toml(tmp_path)


def test_an_unknown_key_is_shown_and_accepted_by_name(
    host: SshHost, shell: Shell, tmp_path: Path
) -> None:
    """Without a terminal nobody is asked: the fingerprint is told, with the words that accept it."""
    url = seen_from_there(tmp_path, shell)
    (host.home / ".ssh" / "known_hosts").write_text("")
    line = ("connect", "ssh", host.host, "--as", "lab", "--store", url, "--json")
    code, document, _ = shell(*line)
    told = fingerprint(host)
    (error,) = [e for e in document["errors"] if "host key" in e["message"]]
    assert code == 40
    assert told in error["message"]
    assert f"--accept-key {told}" in error["hint"]
    code, document, _ = shell(*line, "--accept-key", "SHA256:wrong")
    assert (code, document["errors"][0]["code"]) == (42, "auth")
    assert not (tmp_path / "home" / "known_hosts").exists()
    assert shell(*line, "--accept-key", told)[0] == 0
    assert shell(*line)[0] == 0


def test_at_a_terminal_the_person_is_asked(
    host: SshHost, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fingerprint in the question; no is no."""
    url = seen_from_there(tmp_path, shell)
    (host.home / ".ssh" / "known_hosts").write_text("")
    asked: list[str] = []
    answers = [False, True]

    def confirm(text: str, **_: Any) -> bool:
        asked.append(text)
        return answers.pop(0)

    monkeypatch.setattr(click, "confirm", confirm)
    monkeypatch.setattr("sys.stdin", type("Tty", (io.StringIO,), {"isatty": lambda self: True})())
    line = ("connect", "ssh", host.host, "--as", "lab", "--store", url)
    assert shell(*line)[0] == 40
    assert shell(*line)[0] == 0
    assert len(asked) == 2
    assert fingerprint(host) in asked[0]


@pytest.mark.parametrize(
    ("host_", "name"),
    [
        ("ada@lab.example.com", "lab"),
        ("gpubox", "gpubox"),
        ("ada@Lab_2.example.com:2222", "lab-2"),
        ("192.0.2.7", "host-192-0-2-7"),
        ("ada@192.0.2.7:22", "host-192-0-2-7"),
        ("[2001:db8::1]:22", "host-2001"),
        ("7up.example.com", "host-7up"),
        ("x" * 60, "x" * 32),
    ],
)
def test_a_host_gets_a_name_of_its_own(host_: str, name: str) -> None:
    """A legal name for a platform, from the first label."""
    assert command._name(host_).startswith(name)


def test_a_name_that_is_taken_by_another_host_is_refused(
    host: SshHost, shell: Shell, tmp_path: Path
) -> None:
    """Two labs whose machines are both called gpu: say --as. Several hosts are no second accounts."""
    url = seen_from_there(tmp_path, shell)
    assert shell("connect", "ssh", host.host, "--as", "gpu", "--store", url)[0] == 0
    code, document, _ = shell("connect", "ssh", "gpu.example.com", "--json")
    assert code == 10
    assert "a platform is called gpu already" in document["errors"][0]["message"]
    code, _, _ = shell("connect", "ssh", host.host, "--as", "gpu-b", "--store", url)
    assert code == 0


def test_the_rig_starts_a_session_loses_it_and_refuses(shell: Shell, tmp_path: Path) -> None:
    """What the acceptance tests stand on: a job runs there, the session is taken away, no card is left."""
    with rig(tmp_path / "rig") as lab:
        store = tmp_path / "shared"
        store.mkdir()
        around = {**lab.env, "FREEGPU_HOME": str(tmp_path / "home")}
        program = shutil.which("freegpu") or "freegpu"

        def user(*argv: str) -> str:
            import os
            import sys

            done = subprocess.run(
                [sys.executable, "-m", "freegpu", *argv],
                env={**os.environ, **around},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, (program, done.stdout, done.stderr)
            return done.stdout

        user("connect", "store", f"folder:{store}")
        user("connect", *lab.connect, "--store", lab.opens(store))
        spec = tmp_path / "job.yaml"
        spec.write_text("name: waits\nrun: 'sleep 300'\nresources: {accelerators: T4}\n")
        lab.refuse(True)
        user("submit", str(spec))
        user("tick")
        assert lab.lose() == 0
        lab.refuse(False)
        end = time.monotonic() + 60
        while "waits is running on" not in user("why", "waits"):
            assert time.monotonic() < end, user("why", "waits")
            user("tick")
            time.sleep(0.3)
        assert lab.lose() == 1
        assert not any(secret.encode() in lab.heard() for secret in lab.secrets)
