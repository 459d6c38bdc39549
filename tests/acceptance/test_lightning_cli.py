"""Lightning through the command line: `connect`, `doctor`, and what a start that was never answered leaves behind."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from freegpu.testing.lightning_server import LightningServer
from tests.servers.rig_lightning import rig

pytestmark = pytest.mark.slow

CONNECT = ("connect", "lightning")


@pytest.fixture
def server(user: Any, tmp_path: Path) -> Iterator[LightningServer]:
    """A user with an account, credentials in the shell, and a store that both sides reach."""
    (tmp_path / "me").mkdir()
    with rig(tmp_path / "platform") as made:
        user.settings(store='"s3://bucket/freegpu"')
        user.env.update({**made.env, "HOME": str(tmp_path / "me")})
        for name in ("LIGHTNING_AUTH_TOKEN", "LIGHTNING_CREDENTIAL_PATH"):
            user.env.pop(name, None)
        yield made.server  # type: ignore[attr-defined]


def tables(user: Any) -> Any:
    return tomllib.loads((user.home / "freegpu.toml").read_text()).get("platforms", {})


def findings(ran: Any) -> dict[str, Any]:
    """By name; of `connect` and of `doctor`."""
    data = ran.json["data"]
    rows = data["findings"] if "findings" in data else data["checks"]
    return {row["name"].removeprefix("lightning: "): row for row in rows}


def test_connecting_writes_the_table_and_no_credentials(user: Any, server: LightningServer) -> None:
    """Exit 0; asked again it changes nothing; paid use comes by name and ceiling, and goes by 0."""
    ran = user.ok(*CONNECT, "--teamspace", "ada/lab", "--machines", "T4, CPU")
    assert "lightning is connected as ada/lab" in ran.out
    assert "LIGHTNING_API_KEY are ada's" in ran.out
    assert "5.00 credits by the project balance" in ran.out
    assert tables(user)["lightning"] == {
        "adapter": "lightning", "teamspace": "ada/lab", "machines": ["T4", "CPU"]
    }  # fmt: skip
    assert "and was before" in user.ok(*CONNECT).out
    user.ok(*CONNECT, "--paid-ceiling", "5", "--accept", "paid-use")
    assert tables(user)["lightning"]["paid"] == {"allow": "paid-use", "ceiling": 5.0}
    assert "up to 5 credits a month" in user.ok("doctor", "lightning").out
    user.ok(*CONNECT, "--paid-ceiling", "0")
    assert "paid" not in tables(user)["lightning"]
    assert "nothing beyond the balance is used" in user.ok("doctor", "lightning").out
    kept = "".join(
        path.read_text(errors="replace") for path in user.home.rglob("*") if path.is_file()
    )
    assert server.key not in kept + ran.out + ran.err


@pytest.mark.parametrize(
    "words",
    [
        ("--paid-ceiling", "5"),
        ("--paid-ceiling", "5", "--accept", "yes"),
        ("--accept", "paid-use"),
    ],
)
def test_paid_use_is_never_allowed_by_half_a_word(
    user: Any, server: LightningServer, words: tuple[str, ...]
) -> None:
    """A usage error, 2; nothing is changed and nobody is asked."""
    assert user.types(*CONNECT, *words).code == 2
    assert "lightning" not in tables(user)
    assert not server.requests


def test_another_name_is_fine_and_a_second_account_is_not(
    user: Any, server: LightningServer
) -> None:
    """Exit 10 for the second: rotating accounts breaks the platform's terms."""
    user.ok(*CONNECT, "--as", "bolt")
    assert tables(user)["bolt"]["adapter"] == "lightning"
    ran = user.types(*CONNECT, "--teamspace", "ada/other")
    assert ran.code == 10, ran
    assert "lightning" not in tables(user)
    checks = user.ok("doctor", "bolt", "--json").json["data"]["checks"]
    assert any("offers T4" in check["detail"] for check in checks)


@pytest.mark.parametrize(
    ("env", "fault", "said"),
    [
        ({"LIGHTNING_API_KEY": "wrong-key"}, {}, "does not accept the credentials of LIGHTNING_API_KEY"),
        ({"LIGHTNING_AUTH_TOKEN": "wrong-token"}, {}, "the credentials of LIGHTNING_AUTH_TOKEN"),
        ({"LIGHTNING_API_KEY": "", "LIGHTNING_USER_ID": ""}, {}, "no credentials for Lightning are to be found"),
        ({"LIGHTNING_API_KEY": ""}, {}, "no credentials for Lightning are to be found"),
        ({}, {"expired_token": True}, "does not accept the credentials of LIGHTNING_API_KEY"),
        ({}, {"fail": 503}, "lightning said 503"),
        ({"LIGHTNING_CLOUD_URL": "http://127.0.0.1:9"}, {}, "lightning did not answer (ConnectError)"),
    ],
    ids=["wrong key", "wrong token", "none", "user id alone", "expired", "down", "unreachable"],
)  # fmt: skip
def test_what_is_wrong_is_said_and_nothing_is_changed(
    user: Any, server: LightningServer, env: Any, fault: Any, said: str
) -> None:
    """Exit 40 of `connect`, 10 of `doctor` for a platform that was connected before; no credential is shown."""
    server.set_faults(**fault)
    ran = user.types(*CONNECT, "--json", env=env)
    assert ran.code == 40, ran
    assert said in findings(ran)["credentials"]["detail"]
    assert findings(ran)["credentials"]["hint"] or "503" in said or "answer" in said
    assert "lightning" not in tables(user)
    assert "wrong-" not in ran.out + ran.err
    server.set_faults(**dict.fromkeys(fault))
    user.ok(*CONNECT)
    server.set_faults(**fault)
    ran = user.types("doctor", "lightning", "--json", env=env)
    assert ran.code == 10, ran
    assert said in ran.out
    assert "wrong-" not in ran.out + ran.err


def test_a_teamspace_that_is_not_there_and_a_card_that_nobody_knows(
    user: Any, server: LightningServer
) -> None:
    """40 with the names that there are; 10 for what cannot be meant."""
    ran = user.types(*CONNECT, "--teamspace", "ada/none")
    assert ran.code == 40, ran
    assert "there is none of lab" in ran.out
    assert user.types(*CONNECT, "--machines", "T5").code == 10
    assert "lightning" not in tables(user)


def test_doctor_tells_all_that_can_be_told_without_starting_anything(
    user: Any, server: LightningServer
) -> None:
    """Installed, credentials, each balance with its age, paid use, clock, store; a skew of ten minutes is a problem."""
    user.ok(*CONNECT)
    ran = user.ok("doctor", "lightning", "--json")
    told = json.dumps(ran.json["data"]["checks"])
    for name in ("installed", "credentials", "teamspace", "balance", "paid-use", "clock", "store"):
        assert f"{name}" in told
    for source in ("project", "user", "account", "membership"):
        assert f"{source} 5.00 (unchanged for " in told
    assert "sessions open s3://bucket/freegpu themselves" in told
    assert not server.jobs
    assert not server.studios
    server.set_faults(skew_s=600)
    ran = user.types("doctor", "lightning")
    assert ran.code == 10, ran
    assert "differs from the platform's by 600 s" in ran.out or "by 599 s" in ran.out


def test_a_store_that_only_this_machine_sees_is_refused(user: Any, server: LightningServer) -> None:
    """A folder here is none there: 40, with what to do."""
    user.settings()
    ran = user.types(*CONNECT)
    assert ran.code == 40, ran
    assert "a folder of this machine" in ran.out
    assert "with --store URL" in ran.out
    assert "lightning" not in tables(user)
    user.env.update({"AWS_ACCESS_KEY_ID": "AKIA1234", "AWS_SECRET_ACCESS_KEY": "s" * 20})
    user.ok(*CONNECT, "--store", "s3://bucket/freegpu")
    assert tables(user)["lightning"]["store"] == "s3://bucket/freegpu"
    assert "and was before" in user.ok(*CONNECT).out, "what was said before still holds"


def test_a_start_that_was_never_answered_leaves_nothing_there(
    user: Any, server: LightningServer, tmp_path: Path
) -> None:
    """The Studio held the agent; nobody retried that session, and its handle was never known: the ticks clean it up."""
    (tmp_path / "shared").mkdir()
    user.settings(store=json.dumps(f"folder:{tmp_path / 'shared'}"))
    with (user.home / "freegpu.toml").open("a") as file:
        file.write("[platforms.local]\nenabled = false\n[platforms.lightning]\n")
        file.write(f'adapter = "lightning"\nstore = "folder:{tmp_path / "shared"}"\n')
    server.set_faults(fail={"value": 503, "only": ["create_job"]})
    user.ok("submit", user.counter(total=2))
    user.until(lambda: user.ok("tick") and _made(server) and not server.studios)
    assert not server.jobs
    assert not server.files


def _made(server: LightningServer) -> bool:
    return any(heard.operation == "create_studio" for heard in list(server.requests))
