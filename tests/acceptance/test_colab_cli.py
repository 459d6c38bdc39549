"""Colab by its own program, as a user meets it at the command line; the Colab is a loopback one with real kernels."""

from __future__ import annotations

import json
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.rig_colab import ColabRig, rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ACCEPT = ("--accept", "free-unattended-use")
PUBLIC = "s3://bucket/x?endpoint=https://s3.example.org"


@pytest.fixture
def colab(user: Any, tmp_path: Path) -> Iterator[ColabRig]:
    """A user who has signed in with Colab's program, and whose store is reached from everywhere."""
    with rig(tmp_path / "platform") as made:
        user.env.update(made.env)
        user.settings(store=json.dumps(PUBLIC))
        text = (user.home / "freegpu.toml").read_text() + "[platforms.local]\nenabled = false\n"
        (user.home / "freegpu.toml").write_text(text)
        yield made


@pytest.fixture
def connected(user: Any, colab: ColabRig, tmp_path: Path) -> ColabRig:
    """The same, with Colab as the only platform, and a store that its machines see here."""
    store = tmp_path / "shared"
    store.mkdir()
    user.settings(store=json.dumps(f"folder:{store}"))
    table = {**colab.table, "store": f"folder:{store}"}
    text = (user.home / "freegpu.toml").read_text() + "[platforms.local]\nenabled = false\n"
    text += "[platforms.colab-cli]\n"
    text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
    (user.home / "freegpu.toml").write_text(text)
    return colab


def table(user: Any) -> Any:
    """What stands in freegpu.toml of it."""
    told = tomllib.loads((user.home / "freegpu.toml").read_text())
    return told.get("platforms", {}).get("colab-cli")


def heard(colab: ColabRig) -> list[str]:
    """The operations that Colab was asked for, by whomever."""
    return [json.loads(line)["operation"] for line in colab.heard().splitlines()]


def test_connecting_shows_the_rules_and_takes_nothing_but_their_name(
    user: Any, colab: ColabRig
) -> None:
    """Without the name, or with another, exit code 10 and nothing written; with it, connected. Nothing is started."""
    for words in ((), ("--accept", "yes"), ("--accept", "all")):
        ran = user.types("connect", "colab", "--cli", colab.program, *words)
        assert ran.code == 10, ran
        assert "distributed computing workers" in ran.err
        assert "--accept free-unattended-use" in ran.err
        assert table(user) is None
    assert heard(colab) == []
    ran = user.ok("connect", "colab", "--cli", colab.program, *ACCEPT)
    assert "12 compute units are left" in ran.out
    assert table(user) == {
        "adapter": "colab-cli",
        "cli": colab.program,
        "accepted": "free-unattended-use",
    }
    assert "assign" not in heard(colab)
    doctor = user.ok("doctor", "colab-cli")
    for word in ("0.7.5", "credentials", "compute units", "s apart", "offers T4"):
        assert word in doctor.out
    again = user.ok("connect", "colab")
    assert "and was before" in again.out
    user.ok("connect", "colab", "--store", "/content/drive/MyDrive/freegpu")
    assert table(user)["store"] == "folder:/content/drive/MyDrive/freegpu"
    user.ok("connect", "colab", "--store", "")
    assert "store" not in table(user)


def test_a_program_that_is_missing_or_too_old_is_told_in_one_sentence(
    user: Any, colab: ColabRig
) -> None:
    """Exit code 40, what to do, nothing written; an old program would keep runtimes awake by itself."""
    old = user.desk / "colab"
    old.write_text("#!/bin/sh\necho 'google-colab-cli 0.6.9'\n")
    odd = user.desk / "other"
    odd.write_text("#!/bin/sh\necho hello\n")
    for path in (old, odd):
        path.chmod(0o755)
    for path, said in (
        (user.desk / "nothing", "colab program is not there at"),
        (old, "0.6.9 at"),
        (old, "is too old: freegpu needs 0.7.5"),
        (odd, "does not say its version: hello"),
    ):
        ran = user.types("connect", "colab", "--cli", str(path), *ACCEPT)
        assert ran.code == 40, ran
        assert said in ran.out
        assert "nothing was changed" in ran.out
        assert table(user) is None
    assert "colab_cli" not in ran.out


def test_whoever_is_not_signed_in_is_told_to_and_never_asked(user: Any, colab: ColabRig) -> None:
    """No sign-in, a file that is none, one that cannot be renewed: exit code 40 at once, and no prompt."""
    token = Path(colab.env["HOME"]) / ".config" / "colab-cli" / "token.json"
    kept = token.read_bytes()
    for text, said in (
        (None, "has no sign-in at"),
        (b"{", "cannot be read"),
        (kept.replace(b"1//loopback", b"1//revoked"), "sign-in has ended"),
    ):
        token.unlink()
        if text is not None:
            told = text.decode()
            if "revoked" in told:
                told = json.dumps({**json.loads(told), "expiry": "2020-01-01T00:00:00Z"})
            token.write_text(told)
        else:
            token.touch()
            token.unlink()
        ran = user.types("connect", "colab", "--cli", colab.program, *ACCEPT)
        assert ran.code == 40, ran
        assert said in ran.out
        assert "colab sessions" in ran.out
        assert "authorization code" not in ran.out + ran.err
        if text is None:
            token.write_bytes(kept)


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("http://127.0.0.1:9000", "an address of this machine itself"),
        ("http://localhost:9000", "an address of this machine itself"),
        ("http://192.168.1.5:9000", "an address of a private network"),
    ],
)
def test_a_store_that_runtimes_cannot_reach_is_told_before_one_is_started(
    user: Any, colab: ColabRig, endpoint: str, said: str
) -> None:
    """connect refuses with exit code 40; doctor of a platform that was connected before finds it, with exit code 10."""
    user.ok("connect", "colab", "--cli", colab.program, *ACCEPT)
    toml = user.home / "freegpu.toml"
    toml.write_text(toml.read_text().replace("https://s3.example.org", endpoint))
    doctor = user.types("doctor", "colab-cli")
    assert doctor.code == 10, doctor
    assert said in doctor.out
    assert "cannot reach it" in doctor.out
    ran = user.types("connect", "colab", "--only-paid")
    assert ran.code == 40, ran
    assert said in ran.out


def test_doctor_finds_a_wrong_clock_and_a_colab_that_does_not_answer(
    user: Any, colab: ColabRig
) -> None:
    """Each in its line, with what to do; exit code 10."""
    user.ok("connect", "colab", "--cli", colab.program, *ACCEPT)
    colab.server.set_faults(skew_s=900)
    ran = user.types("doctor", "colab-cli")
    assert ran.code == 10, ran
    assert "set this machine's clock" in ran.out
    colab.server.set_faults(skew_s=None, hang_s={"value": 15, "only": ["ccu-info"]})
    ran = user.types("doctor", "colab-cli", timeout=120)
    assert ran.code == 10, ran
    assert "Colab does not answer" in ran.out
    colab.server.set_faults(hang_s=None)


def test_a_blocked_account_is_asked_nothing_more_by_any_command(
    user: Any, connected: ColabRig
) -> None:
    """DENYLISTED once: no tick, status, doctor or new job asks Colab again, until the user connects it anew."""
    connected.server.set_account(refuse={"status": 200, "outcome": 5})
    user.ok("submit", user.counter(total=5), timeout=120)
    user.until(lambda: user.ok("tick") and "assign" in heard(connected))
    user.until(lambda: (user.home / "colab" / "colab-cli" / "blocked.json").exists())
    user.ok("tick")
    asked = heard(connected)
    assert asked.count("assign") == 1
    assert "blocked this account" in user.ok("why", "count").out
    other = user.counter(total=5, name="other")
    for words in (("tick",), ("status",), ("submit", other), ("tick",)):
        user.ok(*words, timeout=120)
    doctor = user.types("doctor", "colab-cli")
    assert doctor.code == 10
    assert "blocked this account" in doctor.out
    assert heard(connected) == asked
    connected.server.set_account(refuse=None)
    user.ok("connect", "colab")
    assert heard(connected) != asked
    assert "assign" not in heard(connected)[len(asked) :]


def test_a_runtime_is_given_back_when_the_queue_is_empty_and_nothing_keeps_it_awake(
    user: Any, connected: ColabRig, expected: Any
) -> None:
    """Two jobs in one runtime; then it is released by ticks alone. No keep-alive and no secret is ever sent."""
    user.ok("submit", user.counter(total=10), timeout=120)
    user.ok("submit", user.counter(total=12, name="second"), timeout=120)
    user.until_job("count", "succeeded", 150)
    user.until_job("second", "succeeded", 60)
    user.until(lambda: user.ok("tick") and not connected.server.endpoints())
    asked = heard(connected)
    assert "keep-alive" not in asked
    assert asked.count("assign") == 1
    assert not [word for word in asked if not word]
    allowed = {"prepare", "assign", "list", "ccu-info", "prepare-unassign", "unassign", "release"}
    assert set(asked) <= allowed
    for secret in connected.secrets:
        assert secret.encode() not in connected.heard()
    user.ok("pull", "count", "home")
    assert json.loads((user.desk / "home" / "result.json").read_text()) == expected(10)
    sessions = {user.job(name)["attempts"][0]["session"] for name in ("count", "second")}
    assert len(sessions) == 1


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_freegpu_killed_in_the_middle_of_an_assignment_costs_no_runtime(
    user: Any, connected: ColabRig, kind: signal.Signals
) -> None:
    """The command dies while Colab makes the runtime: later ticks give that one back, and the job gets its own."""
    connected.server.set_account(late_s=5, most=2)
    process = user.starts("submit", user.counter(total=5))
    user.until(lambda: "assign" in heard(connected))
    process.send_signal(kind)
    process.communicate(timeout=60)
    assert process.returncode != 0
    connected.server.set_account(late_s=0)
    if not user.ok("jobs", "--json").json["data"]["jobs"]:
        user.ok("submit", "count.yaml", timeout=120)
    user.until_job("count", "succeeded", 200)
    user.until(lambda: user.ok("tick") and not connected.server.endpoints())
    assert len(list((connected.server.folder / "machines").glob("gpu-*"))) == 2


def test_another_card_than_was_asked_for_is_noticed_and_given_back(
    user: Any, connected: ColabRig
) -> None:
    """Colab gives an L4 for a T4 without a word: a job that needs a T4 does not run on it, and the runtime goes."""
    connected.server.set_faults(wrong_card="L4")
    job = user.counter(total=200, hold=100)
    user.ok("submit", job, "--set", "resources.accelerators=T4", timeout=120)

    def noticed() -> bool:
        user.ok("tick", timeout=120)
        return [a["reason"] for a in user.job("count")["attempts"]][:1] == ["wrong_card"]

    user.until(noticed, 120)
    connected.refuse(True)
    user.ok("cancel", "count")
    user.until(lambda: user.ok("tick") and not connected.server.endpoints(), 90)
