"""One ssh line as the user's own ssh would make it: host keys, keys and agents, configuration and jumps."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from freegpu.adapters.stores import ssh_known
from freegpu.adapters.stores.ssh import Line, SshRefused, parse_target
from freegpu.adapters.stores.ssh_config import resolve
from freegpu.adapters.stores.ssh_known import Verdict
from freegpu.errors import AuthError, UnreachableError
from freegpu.testing.ssh_host import Sshd
from tests.contract.ssh_fixtures import Make, host, make, within
from tests.contract.sshd import SshHost, need_sshd

__all__ = ["host", "make"]


def key_of(host: Sshd) -> tuple[str, str]:
    kind, blob = (host.folder / "host_key.pub").read_text().split()[:2]
    return kind, blob


def fingerprint(path: Path) -> str:
    """As ssh-keygen tells it."""
    _, keygen = need_sshd()
    return subprocess.check_output([keygen, "-lf", str(path)], text=True).split()[1]


def keygen(path: Path, *words: str) -> None:
    _, program = need_sshd()
    subprocess.run(
        [program, "-q", *(words or ("-t", "ed25519", "-N", "")), "-f", str(path)], check=True
    )


def known(host: Sshd, *lines: str) -> None:
    (host.home / ".ssh" / "known_hosts").write_text("".join(f"{line}\n" for line in lines))


# --- host keys ------------------------------------------------------------------------------------------


def test_an_unknown_key_is_shown_and_accepted_by_its_fingerprint_alone(
    host: SshHost, make: Make, tmp_path: Path
) -> None:
    """Into a file of our own: the user's known_hosts is read and never written. Strict from then on."""
    known(host)
    told = fingerprint(host.folder / "host_key.pub")
    with pytest.raises(AuthError, match=re.escape(told)) as caught:
        make().offers()
    assert f"--accept-key {told}" in caught.value.hint
    for wrong in ([], ["SHA256:" + "A" * 43], [told[:-1]], [told.lower()]):
        with pytest.raises(AuthError, match=re.escape(told)):
            make().trust(wrong)
    with pytest.raises(AuthError):
        make().offers()
    make().trust([told])
    assert make().offers()
    own = tmp_path / "freegpu" / "known_hosts"
    assert own.read_text().split()[1:] == list(key_of(host))
    assert own.stat().st_mode & 0o077 == 0
    assert (host.home / ".ssh" / "known_hosts").read_text() == ""


def test_a_changed_key_is_refused_and_only_our_own_file_can_be_corrected_by_a_word(
    host: SshHost, make: Make
) -> None:
    """It may be an attack: the user's known_hosts has the last word."""
    make().trust([])
    host.stop()
    for name in ("host_key", "host_key.pub"):
        (host.folder / name).unlink()
    keygen(host.folder / "host_key")
    before = (host.home / ".ssh" / "known_hosts").read_text()
    host.start()
    (host.home / ".ssh" / "known_hosts").write_text(before)
    told = fingerprint(host.folder / "host_key.pub")
    with pytest.raises(AuthError, match=r"not the one in .*ssh-keygen -R") as caught:
        make().offers()
    assert caught.value.hint == ""
    with pytest.raises(AuthError, match="speaks against"):
        make().trust([told])
    known(host)
    make().trust([told])
    own = make().line.own
    assert own is not None
    own.write_text(before)
    with pytest.raises(AuthError, match="not the one in") as caught:
        make().offers()
    assert told in caught.value.hint
    make().trust([told])
    assert make().offers()
    assert len(own.read_text().splitlines()) == 1


def test_a_key_of_another_type_is_no_attack(host: SshHost, make: Make, tmp_path: Path) -> None:
    """known_hosts has only an RSA key of this host: told as what it is, and it may be accepted."""
    keygen(tmp_path / "rsa", "-t", "rsa", "-b", "2048", "-N", "")
    rsa = " ".join((tmp_path / "rsa.pub").read_text().split()[:2])
    known(host, f"[127.0.0.1]:{host.port} {rsa}")
    with pytest.raises(AuthError, match=r"only of another type \(ssh-rsa\)") as caught:
        make().offers()
    told = fingerprint(host.folder / "host_key.pub")
    assert told in caught.value.hint
    make().trust([told])
    assert make().offers()


def test_the_type_that_is_known_is_asked_for(host: SshHost, make: Make) -> None:
    """The server has an RSA key too, and that is the one we know: it shows that one."""
    host.stop()
    keygen(host.folder / "rsa", "-t", "rsa", "-b", "2048", "-N", "")
    host.extra += f"\nHostKey {host.folder}/rsa"
    host.start()
    rsa = " ".join((host.folder / "rsa.pub").read_text().split()[:2])
    known(host, f"[127.0.0.1]:{host.port} {rsa}")
    adapter = make()
    assert adapter.offers()
    assert adapter.line.host_key is not None
    assert adapter.line.host_key.kind == "ssh-rsa"


def test_a_revoked_key_is_refused_whatever_else_is_said(host: SshHost, make: Make) -> None:
    """Also when another line knows it."""
    kind, blob = key_of(host)
    known(host, f"[127.0.0.1]:{host.port} {kind} {blob}", f"@revoked * {kind} {blob}")
    with pytest.raises(AuthError, match="revoked"):
        make().offers()
    with pytest.raises(AuthError, match="speaks against"):
        make().trust([fingerprint(host.folder / "host_key.pub")])


def test_lines_of_every_kind_are_survived(host: SshHost, make: Make) -> None:
    """Authorities, marks nobody knows, old types, hardware keys, garbage, bytes: paramiko gives up such a file."""
    kind, blob = key_of(host)
    known(
        host,
        "# a comment",
        "",
        f"@cert-authority * {kind} {blob}",
        "@unheard-of * ssh-rsa AAAA",
        "lab ssh-dss AAAAB3NzaC1kc3MAAACB",
        "lab sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29t",
        "lab ssh-rsa not*base64",
        "lab",
        "\x00\x01 ü",
        "|1|bad|hash ssh-rsa AAAA",
        f"[127.0.0.*]:{host.port},!nobody {kind} {blob}",
    )
    assert make().offers()
    known(host, f"@cert-authority * {kind} {blob}")
    with pytest.raises(AuthError, match="not known here"):
        make().offers()


def test_hashed_names_are_understood(host: SshHost, make: Make) -> None:
    """As HashKnownHosts writes them (Debian's default)."""
    _, program = need_sshd()
    file = host.home / ".ssh" / "known_hosts"
    subprocess.run([program, "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert file.read_text().startswith("|1|")
    assert make().offers()


@pytest.mark.parametrize(
    ("patterns", "entry", "matches"),
    [
        ("lab.example.com", "lab.example.com", True),
        ("LAB.example.com", "lab.example.com", True),
        ("lab.example.com", "lab.example.com.evil", False),
        ("*.example.com", "lab.example.com", True),
        ("*.example.com,!lab.example.com", "lab.example.com", False),
        ("!lab.example.com", "other", False),
        ("l?b", "lab", True),
        ("[lab]:2222", "[lab]:2222", True),
        ("[lab]:2222", "lab", False),
        ("lab", "[lab]:2222", False),
        ("[*]:2222", "[lab]:2222", True),
        ("a,b,lab", "lab", True),
    ],
)
def test_patterns_match_as_in_openssh(
    patterns: str, entry: str, matches: bool, tmp_path: Path
) -> None:
    """sshd(8), SSH_KNOWN_HOSTS FILE FORMAT."""
    blob = base64.b64encode(b"key").decode()
    (tmp_path / "known").write_text(f"{patterns} ssh-ed25519 {blob}\n")
    found = ssh_known.lines_for(entry, [tmp_path / "missing", tmp_path / "known"])
    assert ssh_known.verdict(found, "ssh-ed25519", b"key") is (
        Verdict.KNOWN if matches else Verdict.UNKNOWN
    )


# --- our keys -------------------------------------------------------------------------------------------


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """A real ssh-agent; call it with a key to hold."""
    if shutil.which("ssh-agent") is None or shutil.which("ssh-add") is None:
        pytest.skip("ssh-agent and ssh-add are not installed")
    where = Path("/tmp") / f"freegpu-agent-{os.getpid()}"  # the path of a socket is short
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(where)], stdout=subprocess.DEVNULL)
    while not where.exists():
        assert process.poll() is None
        time.sleep(0.01)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(where))

    def hold(key: Path) -> None:
        subprocess.run(["ssh-add", "-q", str(key)], check=True)

    yield hold
    process.send_signal(signal.SIGCONT)
    process.terminate()
    process.wait(10)
    where.unlink(missing_ok=True)


def strangers(folder: Path, count: int) -> list[Path]:
    """Keys that the host does not know."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        keygen(folder / f"other{number}")
    return [folder / f"other{number}" for number in range(count)]


def test_a_full_agent_does_not_use_up_the_server_s_patience(
    host: SshHost, make: Make, agent: Callable[[Path], None], tmp_path: Path
) -> None:
    """Eight keys that the host does not know, six tries: the file named for the host goes first."""
    for key in strangers(tmp_path / "keys", 8):
        agent(key)
    adapter = make()
    assert adapter.offers()
    assert adapter.line.signed_in_with == str(host.home / ".ssh" / "id_ed25519")


def test_too_many_wrong_keys_are_explained(
    host: SshHost, make: Make, agent: Callable[[Path], None], tmp_path: Path
) -> None:
    """paramiko's word for it is "No existing session", which is nobody's mistake to understand."""
    for key in strangers(tmp_path / "keys", 8):
        agent(key)
    (host.home / ".ssh" / "id_ed25519").rename(tmp_path / "away")
    (host.home / ".ssh" / "id_ed25519.pub").unlink()
    with pytest.raises(AuthError, match=r"hung up after \d keys.*IdentitiesOnly"):
        make().offers()


def test_the_agent_s_key_is_used_and_its_socket_may_be_named(
    host: SshHost,
    make: Make,
    agent: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key that lies in the agent alone; and IdentityAgent in the configuration goes before the environment."""
    agent(host.home / ".ssh" / "id_ed25519")
    (host.home / ".ssh" / "id_ed25519").rename(tmp_path / "away")
    adapter = make()
    assert adapter.offers()
    assert "your ssh-agent" in adapter.line.signed_in_with
    where = os.environ["SSH_AUTH_SOCK"]
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "nobody"))
    with pytest.raises(AuthError):
        make().offers()
    (host.home / ".ssh" / "config").write_text(f"Host *\n  IdentityAgent {where}\n")
    assert make().offers()
    (host.home / ".ssh" / "config").write_text("Host *\n  IdentityAgent none\n")
    with pytest.raises(AuthError):
        make().offers()


def test_a_key_with_a_passphrase_is_explained(host: SshHost, make: Make) -> None:
    """And never asked for: it belongs into the agent."""
    _, program = need_sshd()
    key = host.home / ".ssh" / "id_ed25519"
    subprocess.run([program, "-q", "-p", "-P", "", "-N", "secret", "-f", str(key)], check=True)
    with pytest.raises(AuthError, match=r"has a passphrase.*ssh-add"):
        make().offers()


def test_no_key_and_a_refused_key_are_told_apart(host: SshHost, make: Make, tmp_path: Path) -> None:
    """One wants ssh-keygen, the other ssh-copy-id."""
    (host.folder / "authorized_keys").write_text("")
    with pytest.raises(AuthError, match="accepts none of your keys"):
        make().offers()
    (host.home / ".ssh" / "id_ed25519").unlink()
    (host.home / ".ssh" / "id_ed25519.pub").unlink()
    with pytest.raises(AuthError, match="there is no ssh key"):
        make().offers()


def test_a_server_that_takes_only_passwords_is_told(host: SshHost, make: Make) -> None:
    """freegpu keeps none, so there is no way in."""
    host.stop()
    host.extra = (
        f"PubkeyAuthentication no\nMatch all\nPasswordAuthentication yes\n{host.extra.strip()}"
    )
    host.start()
    with pytest.raises(AuthError, match=r"takes no keys|accepts none"):
        make().offers()


def test_a_server_of_another_age_is_told(host: SshHost, make: Make) -> None:
    """paramiko 5 speaks no SHA-1 any more: a sentence, and no list of algorithms alone."""
    host.stop()
    host.extra += "\nKexAlgorithms diffie-hellman-group14-sha1"
    host.start()
    with pytest.raises(AuthError, match="no longer safe"):
        make().offers()


# --- limits of the server -------------------------------------------------------------------------------


def test_one_session_a_connection_is_enough(host: SshHost, make: Make) -> None:
    """MaxSessions 1: each question closes its channel; none at all is told."""
    host.stop()
    host.extra = f"MaxSessions 1\n{host.extra}"
    host.start()
    adapter = make()
    for _ in range(4):
        try:
            assert adapter.offers()
        except UnreachableError:  # the server has not yet seen the last one end
            time.sleep(0.2)
            assert adapter.offers()
    host.stop()
    host.extra = host.extra.replace("MaxSessions 1", "MaxSessions 0")
    host.start()
    with pytest.raises(UnreachableError) as caught:
        make().offers()
    assert "MaxSessions" in caught.value.hint


def test_a_crowd_at_the_door_is_worth_another_try(host: SshHost, make: Make) -> None:
    """MaxStartups 1: sshd hangs up on who comes while somebody signs in; that is no refusal."""
    host.stop()
    text = host.extra
    host.extra = f"LoginGraceTime 3\n{text}"
    host.start()
    config = host.folder / "sshd_config"
    assert "MaxStartups 100" in config.read_text()
    config.write_text(config.read_text().replace("MaxStartups 100", "MaxStartups 1"))
    assert host.process is not None
    host.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    with socket.create_connection(("127.0.0.1", host.port)) as waiting:
        waiting.recv(64)
        with pytest.raises(UnreachableError) as caught:
            within(10, lambda: make().offers())
        assert caught.value.transient
    time.sleep(0.3)
    assert make().offers()


def test_a_kept_connection_that_died_is_dialled_anew(host: SshHost, make: Make) -> None:
    """Also when nobody has noticed yet: the command was not sent, so nothing is done twice."""
    line = make().line
    for _ in range(15):
        assert line.say("true", timeout=10).code == 0
        host.cut()


# --- the configuration ----------------------------------------------------------------------------------


@pytest.fixture
def config(host: SshHost) -> Path:
    """The user's ~/.ssh/config."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh is installed")
    return host.home / ".ssh" / "config"


def test_names_ports_users_and_includes_of_the_configuration_count(
    host: SshHost, make: Make, config: Path, tmp_path: Path
) -> None:
    """paramiko's own reader follows no Include; a Match that runs a program counts as well."""
    (tmp_path / "more").write_text(f"Host box\n  Port {host.port}\n  HostName 127.0.0.1\n")
    config.write_text(
        f"Include {tmp_path}/more\nMatch originalhost box exec true\n  User {host.user}\n"
    )
    adapter = make(host="box")
    assert adapter.offers()
    assert adapter.account == "box"
    route = resolve(parse_target("box"))
    assert (route.host, route.port, route.user) == ("127.0.0.1", host.port, host.user)


def test_the_alias_of_a_host_key_counts(host: SshHost, make: Make, config: Path) -> None:
    """HostKeyAlias: hosts behind one address."""
    kind, blob = key_of(host)
    known(host, f"lab-behind {kind} {blob}")
    with pytest.raises(AuthError, match="not known"):
        make().offers()
    config.write_text("Host 127.0.0.1\n  HostKeyAlias lab-behind\n")
    assert make().offers()


def test_other_known_hosts_files_count(
    host: SshHost, make: Make, config: Path, tmp_path: Path
) -> None:
    """UserKnownHostsFile, which paramiko parses and ignores."""
    (host.home / ".ssh" / "known_hosts").rename(tmp_path / "elsewhere")
    config.write_text(f"Host *\n  UserKnownHostsFile {tmp_path}/elsewhere\n")
    assert make().offers()


def test_a_configuration_that_is_broken_is_told(host: SshHost, make: Make, config: Path) -> None:
    """In ssh's own words."""
    config.write_text("Host *\n  NoSuchWord yes\n")
    with pytest.raises(AuthError, match=r"your ssh configuration cannot be used.*"):
        make().offers()


def test_a_jump_is_made_and_its_key_is_checked_too(
    host: SshHost, make: Make, config: Path, tmp_path: Path
) -> None:
    """ProxyJump, which paramiko ignores: through a second sshd, whose key must be known as well."""
    gate = SshHost(tmp_path / "gate")
    with gate:
        shutil.copy(host.folder / "authorized_keys", gate.folder / "authorized_keys")
        config.write_text(
            f"Host gate\n  HostName 127.0.0.1\n  Port {gate.port}\n  User {gate.user}\n"
            f"Host inner\n  HostName 127.0.0.1\n  Port {host.port}\n  User {host.user}\n  ProxyJump gate\n"
        )
        told = fingerprint(gate.folder / "host_key.pub")
        with pytest.raises(AuthError, match="host key of gate is not known") as caught:
            make(host="inner").offers()
        assert told in caught.value.hint
        make(host="inner").trust([told])
        adapter = make(host="inner")
        assert adapter.offers()
        assert gate.connections()
        gate.cut()
        # whether the cut was noticed before the question or by it, the one after that gets through
        with contextlib.suppress(UnreachableError):
            within(40, lambda: adapter.offers())
        assert adapter.offers()
        assert gate.connections(), "not past the gate"
        adapter.close()
    with pytest.raises(UnreachableError):
        make(host="inner").offers()


def test_a_jump_that_forbids_forwarding_is_told(
    host: SshHost, make: Make, config: Path, tmp_path: Path
) -> None:
    """AllowTcpForwarding no."""
    gate = SshHost(tmp_path / "gate", extra="AllowTcpForwarding no")
    with gate:
        shutil.copy(host.folder / "authorized_keys", gate.folder / "authorized_keys")
        kind, blob = key_of(gate)
        with (host.home / ".ssh" / "known_hosts").open("a") as file:
            file.write(f"[127.0.0.1]:{gate.port} {kind} {blob}\n")
        config.write_text(
            f"Host inner\n  HostName 127.0.0.1\n  Port {host.port}\n  ProxyJump {gate.host}\n"
        )
        with pytest.raises(
            UnreachableError, match="the last host on the way does not get to inner"
        ):
            make(host="inner").offers()


def test_a_circle_of_jumps_has_an_end(host: SshHost, make: Make, config: Path) -> None:
    """a by b by a."""
    config.write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(AuthError, match="leads in a circle"):
        within(10, lambda: make(host="a").offers())


def test_a_program_may_be_the_way_and_its_end_is_seen(
    host: SshHost, make: Make, config: Path, tmp_path: Path
) -> None:
    """ProxyCommand with its tokens. paramiko's own would spin for ever once the program has ended."""
    program = tmp_path / "way.py"
    program.write_text(
        "import os, socket, sys, threading\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): s.sendall(data)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536): os.write(1, data)\n"
    )
    config.write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {host.port}\n  User {host.user}\n"
        f"  ProxyCommand python3 {program} %h %p\n"
    )
    adapter = make(host="box")
    assert adapter.offers()
    host.cut()
    within(10, lambda: adapter.offers())
    config.write_text("Host box\n  ProxyCommand false\n")
    with pytest.raises(UnreachableError):
        within(10, lambda: make(host="box").offers())


def test_without_ssh_the_configuration_is_still_read(
    host: SshHost, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By paramiko's reader: names, ports, users, keys."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    (host.home / ".ssh" / "config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {host.port}\n  User {host.user}\n"
    )
    assert make(host="box").offers()


@pytest.mark.parametrize(
    ("text", "host_", "port", "user"),
    [
        ("lab", "lab", None, ""),
        ("ada@lab:22", "lab", 22, "ada"),
        ("ada@[::1]:2222", "::1", 2222, "ada"),
        ("[::1]", "::1", None, ""),
        ("a@b@lab", "lab", None, "a@b"),
        ("Lab", "Lab", None, ""),
    ],
)
def test_hosts_are_taken_apart(text: str, host_: str, port: int | None, user: str) -> None:
    """As ssh does, with a port behind a colon."""
    target = parse_target(text)
    assert (target.host, target.port, target.user) == (host_, port, user)
    assert str(target) == text


def test_a_line_that_only_looks_signs_in_nowhere(host: SshHost) -> None:
    """The key is shown before any of ours is offered."""
    (host.folder / "authorized_keys").write_text("")
    line = Line(parse_target(host.host))
    assert line.look().verdict is Verdict.KNOWN
    with pytest.raises(SshRefused):
        line.transport()
    line.close()
