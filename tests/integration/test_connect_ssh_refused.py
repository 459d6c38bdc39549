"""`freegpu connect ssh` and `doctor` when it cannot be: a sentence, an exit code of the list, and nothing changed."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.stores import ssh as line_module
from tests.contract.sshd import SshHost, at_home, free_port, need_sshd, typed

Shell = Callable[..., Any]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHost]:
    with at_home(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Runs a command line in this process; (exit code, stdout, stderr)."""

    def call(*argv: str) -> Any:
        return typed(tmp_path / "home", *argv)

    return call


@pytest.fixture
def url(tmp_path: Path, shell: Shell) -> str:
    """A store that both sides see."""
    (tmp_path / "shared").mkdir()
    assert shell("connect", "store", f"folder:{tmp_path}/shared")[0] == 0
    return f"folder:{tmp_path}/shared"


def settings(tmp_path: Path) -> dict[str, bytes]:
    """What the home knows of platforms, keys and hosts."""
    home = tmp_path / "home"
    names = ("freegpu.toml", "known_hosts")
    return {name: (home / name).read_bytes() for name in names if (home / name).exists()}


def refused(tmp_path: Path, shell: Shell, code: int, word: str, *argv: str) -> dict[str, Any]:
    """This command line ends with this code and a sentence that has this word in it, and changes no setting."""
    before = settings(tmp_path)
    told, out, err = shell("connect", "ssh", "--json", *argv)
    document = json.loads(out)
    errors = document["errors"]
    assert (told, bool(errors)) == (code, True), (out, err)
    assert any(word in error["message"] for error in errors), errors
    assert not [error for error in errors if "\n" in error["message"] or "Traceback" in str(error)]
    assert settings(tmp_path) == before
    told, out, err = shell("connect", "ssh", *argv)
    assert told == code
    assert word in out + err
    assert "Traceback" not in out + err
    assert "internal error" not in out + err
    assert settings(tmp_path) == before
    first: dict[str, Any] = errors[0]
    return first


@pytest.mark.parametrize(
    "host_",
    [
        "",
        " ",
        "ada@",
        "@lab",
        "ada@lab:",
        "ada@lab:ssh",
        "ada@lab:0",
        "ada@lab:65536",
        "ada@lab:-22",
        "ada@lab:22:22",
        "ada@2001:db8::1",
        "ada@[2001:db8::1",
        "ada@[2001:db8::1]:x",
        "ssh://ada@lab",
        "ada@lab/path",
        "ada@lab -oProxyCommand=id",
        "ada@-oProxyCommand=id",
        "ada@lab\nHost *",
        "Ädä@läb:x",
    ],
    ids=ascii,
)
def test_a_host_that_cannot_be_meant_is_a_usage_of_settings(
    tmp_path: Path, shell: Shell, url: str, host_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 10, before anything is dialled or ssh is asked."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was dialled")

    monkeypatch.setattr(socket, "create_connection", never)
    monkeypatch.setattr(subprocess, "run", never)
    refused(tmp_path, shell, 10, "", "--as", "lab", "--store", url, "--", host_)


def test_a_password_is_refused_and_not_repeated(tmp_path: Path, shell: Shell, url: str) -> None:
    """It was typed where it does not belong: it is shown nowhere, and kept nowhere."""
    line = ("connect", "ssh", "ada:hunter2@lab.example.com", "--as", "lab", "--store", url)
    code, out, err = shell(*line)
    assert code == 10
    assert "without a password" in err
    assert "hunter2" not in out + err
    assert not [
        p for p in (tmp_path / "home").rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()
    ]
    code, out, err = shell("connect", "ssh", "ada:hunter2@lab.example.com")
    assert code == 10
    assert "hunter2" not in out + err


def test_a_name_that_nobody_knows(
    tmp_path: Path, shell: Shell, url: str, host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 40, and the name."""

    def nobody(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    monkeypatch.setattr(socket, "create_connection", nobody)
    refused(
        tmp_path,
        shell,
        40,
        "there is no host typo.example.com",
        "ada@typo.example.com",
        "--store",
        url,
    )


def test_a_port_where_nobody_listens(tmp_path: Path, shell: Shell, url: str, host: SshHost) -> None:
    """Exit code 40; of either internet."""
    port = free_port()
    refused(
        tmp_path, shell, 40, f"127.0.0.1:{port}", f"127.0.0.1:{port}", "--as", "lab", "--store", url
    )
    refused(
        tmp_path, shell, 40, f"[::1]:{port}", f"ada@[::1]:{port}", "--as", "lab", "--store", url
    )


def test_a_port_that_is_no_sshd_s(
    tmp_path: Path, shell: Shell, url: str, host: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the call and is silent, as a firewall's tarpit does: exit code 40, in time."""
    monkeypatch.setattr(line_module, "CONNECT_S", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"127.0.0.1:{server.getsockname()[1]}"
        refused(tmp_path, shell, 40, where, where, "--as", "lab", "--store", url)


def test_a_key_that_the_host_does_not_take(
    tmp_path: Path, shell: Shell, url: str, host: SshHost
) -> None:
    """Exit code 40 with the two programs that mend it."""
    (host.folder / "authorized_keys").write_text("")
    told = refused(
        tmp_path, shell, 40, "accepts none of your keys", host.host, "--as", "lab", "--store", url
    )
    assert told["message"].startswith("credentials: ")
    assert "ssh-copy-id" in told["message"]


def test_a_host_key_that_has_changed(tmp_path: Path, shell: Shell, url: str, host: SshHost) -> None:
    """Exit code 40 with the new fingerprint and where the old one stands; --accept-key does not go over the user's file."""
    known = host.home / ".ssh" / "known_hosts"
    before = known.read_text()
    host.stop()
    keygen = need_sshd()[1]
    for name in ("host_key", "host_key.pub"):
        (host.folder / name).unlink()
    path = str(host.folder / "host_key")
    subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    host.start()
    known.write_text(before)
    new = subprocess.check_output([keygen, "-lf", f"{path}.pub"], text=True).split()[1]
    line = (host.host, "--as", "lab", "--store", url)
    told = refused(tmp_path, shell, 40, new, *line)
    assert "somebody may be in between" in told["message"]
    assert str(known) in told["message"]
    assert "--accept-key" not in told["hint"]
    refused(tmp_path, shell, 42, "speaks against", *line, "--accept-key", new)
    assert known.read_text() == before


def test_a_connected_host_whose_key_changes_is_not_used_any_more(
    tmp_path: Path, shell: Shell, url: str, host: SshHost
) -> None:
    """`doctor` says so with exit code 10; what was configured stays."""
    assert shell("connect", "ssh", host.host, "--as", "lab", "--store", url)[0] == 0
    code, out, _ = shell("doctor", "lab", "--json")
    assert code == 0, out
    known = host.home / ".ssh" / "known_hosts"
    kind, blob = (host.home / ".ssh" / "id_ed25519.pub").read_text().split()[:2]
    known.write_text(f"[127.0.0.1]:{host.port} {kind} {blob}\n")
    before = settings(tmp_path)
    code, out, err = shell("doctor", "lab")
    assert code == 10
    assert "somebody may be in between" in out + err
    host.stop()
    code, out, err = shell("doctor", "lab")
    assert code == 10
    assert "does not answer" in out + err
    assert "Traceback" not in out + err
    assert settings(tmp_path) == before
    code, out, _ = shell("doctor", "nobody", "--json")
    assert code in (10, 12)
    assert "nobody" in out


@pytest.mark.parametrize(
    "table", ['adapter = "local"', 'adapter = "ssh"\nhost = "other.example.com"']
)
def test_a_name_that_another_platform_has(
    tmp_path: Path, shell: Shell, url: str, host: SshHost, table: str
) -> None:
    """Exit code 10, also when that is no host at all; its table is not touched."""
    with (tmp_path / "home" / "freegpu.toml").open("a") as file:
        file.write(f"\n[platforms.lab]\n{table}\n")
    refused(tmp_path, shell, 10, "called lab already", host.host, "--as", "lab", "--store", url)


@pytest.mark.parametrize(
    "name", ["", "Lab", "a b", "x" * 80, "../x", "läb", "1", "a]\nx"], ids=ascii
)
def test_a_name_that_no_platform_can_have(
    tmp_path: Path, shell: Shell, url: str, host: SshHost, name: str
) -> None:
    """Exit code 10 or 2, whatever the host is."""
    before = settings(tmp_path)
    code, out, err = shell("connect", "ssh", host.host, f"--as={name}", "--store", url)
    if name == "":
        # no name is no wish: it is called after its address
        assert code == 0
        return
    assert code in (2, 10), (out, err)
    assert "Traceback" not in out + err
    assert "internal error" not in out + err
    assert settings(tmp_path) == before


def test_a_host_without_python_is_not_connected(
    tmp_path: Path, shell: Shell, url: str, host: SshHost
) -> None:
    """Exit code 40, as a finding about Python."""
    place = host.folder / "few"
    place.mkdir()
    for name in ("tee", "cat"):
        (place / name).symlink_to(shutil.which(name) or name)
    host.surround({"PATH": str(place)})
    told = refused(tmp_path, shell, 40, "has no python3", host.host, "--as", "lab", "--store", url)
    assert told["message"].startswith("python: ")


def test_no_password_or_key_is_stored(
    tmp_path: Path, shell: Shell, url: str, host: SshHost
) -> None:
    """After connecting, the home holds the host's name alone: no private key, no path of one, no copy."""
    assert shell("connect", "ssh", host.host, "--as", "lab", "--store", url)[0] == 0
    key = (host.home / ".ssh" / "id_ed25519").read_bytes()
    lines = [line for line in key.splitlines() if not line.startswith(b"-----")]
    for path in (tmp_path / "home").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not [line for line in lines if line in data], path
    assert "id_ed25519" not in (tmp_path / "home" / "freegpu.toml").read_text()
