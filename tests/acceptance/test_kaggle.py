"""Connecting a Kaggle account and looking at it, through the command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from freegpu.testing.kaggle_server import KaggleServer
from tests.acceptance.kaggle import me, secret_free, server, signed_in, table

__all__ = ["me", "server", "signed_in"]

pytestmark = pytest.mark.slow

# --- connecting -------------------------------------------------------------------------------------------


def _token(home: Path, server: KaggleServer, env: dict[str, str]) -> None:
    (home / ".kaggle/access_token").write_text(server.token + "\n")


def _in_env(home: Path, server: KaggleServer, env: dict[str, str]) -> None:
    env["KAGGLE_API_TOKEN"] = server.token


def _key(home: Path, server: KaggleServer, env: dict[str, str]) -> None:
    told = {"username": server.user, "key": server.key}
    (home / ".kaggle/kaggle.json").write_text(json.dumps(told))


def _key_in_env(home: Path, server: KaggleServer, env: dict[str, str]) -> None:
    env.update(KAGGLE_USERNAME=server.user, KAGGLE_KEY=server.key)


def _oauth(home: Path, server: KaggleServer, env: dict[str, str]) -> None:
    """Expired, as after a night; and with another spelling of the name than Kaggle's own."""
    told = {
        "refresh_token": server.refresh, "access_token": server.token, "username": "somebody-before",
        "access_token_expiration": (datetime.now(UTC) - timedelta(minutes=5)).isoformat(), "scopes": [],
    }  # fmt: skip
    (home / ".kaggle/credentials.json").write_text(json.dumps(told))


@pytest.mark.parametrize("way", [_token, _in_env, _key, _key_in_env, _oauth])
def test_connect_finds_what_kaggle_s_tools_keep_and_writes_the_name_that_kaggle_tells(
    me: Any, server: KaggleServer, way: Any
) -> None:
    """Asked for nothing, no copy made; quota and the plain word about stopping are shown. Twice is the same."""
    env: dict[str, str] = {}
    way(Path(me.env["HOME"]), server, env)
    me.env |= env
    first = me.ok("connect", "kaggle")
    assert "kaggle is connected as ada; see" in first.out
    assert "gpu 30.0 of 30 h left" in first.out
    assert "Kaggle ends a session only by deleting its notebook and its output" in first.out
    assert "no credentials leave" in first.out
    assert table(me) == {"adapter": "kaggle", "account": "ada", "carry": "sealed"}
    assert "and was before" in me.ok("connect", "kaggle").out
    secret_free(me, server)
    assert not server.kernels


def _nothing(home: Path, server: KaggleServer, env: dict[str, str]) -> str:
    return "no credentials for Kaggle on this machine"


def _wrong_token(home: Path, server: KaggleServer, env: dict[str, str]) -> str:
    env["KAGGLE_API_TOKEN"] = "KGAT_wrong-token"
    return "the access token in KAGGLE_API_TOKEN"


def _wrong_key(home: Path, server: KaggleServer, env: dict[str, str]) -> str:
    (home / ".kaggle/kaggle.json").write_text('{"username": "ada", "key": "wrong-token"}')
    return "does not accept the legacy key"


def _somebody_else(home: Path, server: KaggleServer, env: dict[str, str]) -> str:
    told = {"username": "grace", "key": server.key}
    (home / ".kaggle/kaggle.json").write_text(json.dumps(told))
    return "does not accept the legacy key"


def _damaged(home: Path, server: KaggleServer, env: dict[str, str]) -> str:
    (home / ".kaggle/kaggle.json").write_text('{"username": "ada", "key": "wrong-token')
    return "kaggle.json cannot be read"


def _no_file(home: Path, server: KaggleServer, env: dict[str, str]) -> str:
    (home / ".kaggle/kaggle.json").mkdir()
    return "kaggle.json cannot be read"


def _token_no_file(home: Path, server: KaggleServer, env: dict[str, str]) -> str:
    (home / ".kaggle/access_token").mkdir()
    return "access token cannot be read"


def _revoked(home: Path, server: KaggleServer, env: dict[str, str]) -> str:
    _oauth(home, server, env)
    server.refresh = "another"
    return "401"


def _expired(home: Path, server: KaggleServer, env: dict[str, str]) -> str:
    _key(home, server, env)
    server.set_faults(expired_token=True)
    return "does not accept the legacy key"


def _not_verified(home: Path, server: KaggleServer, env: dict[str, str]) -> str:
    _key(home, server, env)
    server.set_faults(fail={"value": 403, "only": ["GetAcceleratorQuotaStatistics"]})
    return "403"


@pytest.mark.parametrize(
    "how",
    [_nothing, _wrong_token, _wrong_key, _somebody_else, _damaged, _no_file, _token_no_file, _revoked, _expired, _not_verified],
)  # fmt: skip
def test_what_is_missing_is_said_and_nothing_is_written(
    me: Any, server: KaggleServer, how: Any
) -> None:
    """Exit code 40, as documented, in words and as JSON; the secret is in neither."""
    env: dict[str, str] = {}
    word = how(Path(me.env["HOME"]), server, env)
    me.env |= env
    before = (me.home / "freegpu.toml").read_text()
    ran = me.types("connect", "kaggle")
    assert ran.code == 40, ran
    assert word in ran.out, ran
    assert "kaggle is not connected; nothing was changed" in ran.out
    told = me.types("connect", "kaggle", "--json")
    assert (told.code, told.json["exit_code"], told.json["status"]) == (40, 40, "error")
    assert word in told.json["errors"][0]["message"]
    assert told.json["errors"][0]["hint"]
    assert (me.home / "freegpu.toml").read_text() == before
    for text in (ran.out, ran.err, told.out, told.err):
        assert "wrong-token" not in text
        assert server.key not in text


def test_words_that_cannot_be_meant_are_refused_before_anything_is_asked(
    signed_in: Any, server: KaggleServer
) -> None:
    """Exit code 2: credentials that sealed sessions have no use for, and ways that do not exist."""
    for words in (
        ["--credentials", "private-dataset"],
        ["--carry", "both"],
        ["--credentials", "x"],
    ):
        assert signed_in.types("connect", "kaggle", *words).code == 2
    assert not server.requests


def test_the_store_s_credentials_go_only_when_that_was_said(
    signed_in: Any, server: KaggleServer
) -> None:
    """A store that sessions cannot reach, then one that takes keys, then the word; back to sealed takes it back."""
    ran = signed_in.types("connect", "kaggle", "--carry", "store")
    assert ran.code == 40, ran
    assert "a folder of this machine" in ran.out
    text = (signed_in.home / "freegpu.toml").read_text()
    (signed_in.home / "freegpu.toml").write_text('store = "s3://bucket"\n' + text)
    canary = "canary-of-the-bucket"
    signed_in.env |= {"AWS_ACCESS_KEY_ID": "AKIACANARY", "AWS_SECRET_ACCESS_KEY": canary}
    ran = signed_in.types("connect", "kaggle", "--carry", "store")
    assert ran.code == 40, ran
    assert "stay here until you allow them to go" in ran.out
    assert "--credentials private-dataset" in ran.out
    assert table(signed_in) == {}
    ran = signed_in.ok("connect", "kaggle", "--carry", "store", "--credentials", "private-dataset")
    assert "go there in a private dataset" in ran.out
    assert table(signed_in) == {
        "adapter": "kaggle", "account": "ada", "carry": "store", "credentials": "private-dataset",
    }  # fmt: skip
    assert canary not in ran.out
    signed_in.ok("connect", "kaggle", "--carry", "sealed")
    assert table(signed_in) == {"adapter": "kaggle", "account": "ada", "carry": "sealed"}
    for request in server.requests:
        assert canary.encode() not in request.body


def test_a_second_account_is_refused(signed_in: Any, server: KaggleServer) -> None:
    """One account a platform: neither by another name here nor by exchanging the token."""
    signed_in.ok("connect", "kaggle")
    assert signed_in.types("connect", "kaggle", "--as", "other").code == 10
    server.user = "grace"
    ran = signed_in.types("doctor", "kaggle")
    assert ran.code == 10
    assert "is grace's, and ada was connected" in ran.out
    assert "connected as grace" in signed_in.ok("connect", "kaggle").out


# --- doctor -----------------------------------------------------------------------------------------------


def test_doctor_tells_what_there_is_and_what_is_wrong(signed_in: Any, server: KaggleServer) -> None:
    """Installed, credentials, quota, sessions, clock, and what reaches the store from there; 10 if one is broken."""
    signed_in.ok("connect", "kaggle")
    ran = signed_in.ok("doctor", "kaggle", "--json")
    checks = {check["name"]: check for check in ran.json["data"]["checks"]}
    assert checks["kaggle installed"]["detail"].startswith("kagglesdk 0.")
    assert checks["kaggle credentials"]["ok"] is True
    assert "gpu 30.0 of 30 h left" in checks["kaggle quota"]["detail"]
    assert "no notebook of freegpu" in checks["kaggle sessions"]["detail"]
    assert checks["kaggle clock"]["ok"] is True
    assert "no session opens the store" in checks["kaggle carry"]["detail"]
    assert "only by deleting" in checks["kaggle stopping"]["detail"]
    assert "T4 x2, tpu-v5e-8, CPU" in checks["kaggle"]["detail"]
    server.set_faults(skew_s=900)
    ran = signed_in.types("doctor", "kaggle")
    assert ran.code == 10
    assert "differs from Kaggle's by" in ran.out
    server.set_faults(skew_s=None, fail=503)
    ran = signed_in.types("doctor", "kaggle")
    assert ran.code == 10
    assert "503" in ran.out


def test_doctor_live_runs_a_job_there_and_leaves_nothing(
    signed_in: Any, server: KaggleServer
) -> None:
    """The canary goes the whole way, in a home of its own."""
    signed_in.ok("connect", "kaggle")
    ran = signed_in.ok("doctor", "kaggle", "--live", timeout=150)
    assert "kaggle" in ran.out
    assert [h.operation for h in server.requests].count("SaveKernel") == 1
    assert not server.kernels
    assert not server.data.known
