"""Credentials for Kaggle: found where its own tools keep them, true about their expiry, never copied or shown."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from freegpu.errors import AuthError, MissingSDKError, RejectedError
from freegpu.testing.kaggle_server import KaggleServer
from freegpu.testing.suites import Stage
from tests.contract.kaggle import made, server, stage

__all__ = ["server", "stage"]


def token_in_env(server: KaggleServer, home: Path, set_: Callable[..., None]) -> None:
    set_("KAGGLE_API_TOKEN", server.token)


def token_by_path(server: KaggleServer, home: Path, set_: Callable[..., None]) -> None:
    (home / "mine").write_text(f"{server.token}\n")
    set_("KAGGLE_API_TOKEN", str(home / "mine"))


def token_file(server: KaggleServer, home: Path, set_: Callable[..., None]) -> None:
    (home / ".kaggle/access_token").write_text(server.token)


def token_txt(server: KaggleServer, home: Path, set_: Callable[..., None]) -> None:
    (home / ".kaggle/access_token.txt").write_text(f" {server.token} \n")


def key_in_env(server: KaggleServer, home: Path, set_: Callable[..., None]) -> None:
    set_("KAGGLE_USERNAME", "ada")
    set_("KAGGLE_KEY", server.key)


def key_file(server: KaggleServer, home: Path, set_: Callable[..., None]) -> None:
    (home / ".kaggle/kaggle.json").write_text(json.dumps({"username": "ada", "key": server.key}))


def key_in_config_dir(server: KaggleServer, home: Path, set_: Callable[..., None]) -> None:
    (home / "conf").mkdir()
    set_("KAGGLE_CONFIG_DIR", str(home / "conf"))
    (home / "conf/kaggle.json").write_text(json.dumps({"username": "ada", "key": server.key}))


def key_in_xdg(server: KaggleServer, home: Path, set_: Callable[..., None]) -> None:
    (home / "xdg/kaggle").mkdir(parents=True)
    set_("XDG_CONFIG_HOME", str(home / "xdg"))
    (home / "xdg/kaggle/kaggle.json").write_text(json.dumps({"username": "ada", "key": server.key}))


def oauth(server: KaggleServer, home: Path, set_: Callable[..., None], **expires: float) -> None:
    ends = datetime.now(UTC) + timedelta(**(expires or {"hours": 3}))
    told = {
        "refresh_token": server.refresh, "access_token": server.token, "username": "ada",
        "access_token_expiration": ends.isoformat(), "scopes": [],
    }  # fmt: skip
    (home / ".kaggle/credentials.json").write_text(json.dumps(told))


WAYS = (token_in_env, token_by_path, token_file, token_txt, key_in_env, key_file, key_in_config_dir, key_in_xdg, oauth)  # fmt: skip


@pytest.fixture
def bare(server: KaggleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with no credentials at all."""
    monkeypatch.delenv("KAGGLE_API_TOKEN")
    (tmp_path / ".kaggle").mkdir()
    return tmp_path


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_credentials_are_found_where_kaggle_s_tools_keep_them(
    server: KaggleServer, bare: Path, monkeypatch: pytest.MonkeyPatch, way: Any
) -> None:
    """Each is accepted, called by its place, and written nowhere."""
    way(server, bare, monkeypatch.setenv)
    home = bare / "home"
    home.mkdir()
    before = {path: path.read_bytes() for path in (bare / ".kaggle").iterdir()}
    adapter = made(home)
    findings = {f.name: f for f in adapter.diagnose("")}
    assert findings["credentials"].ok, findings
    assert "ada's" in findings["credentials"].detail
    assert adapter.signed_in == "ada"
    adapter.close()
    assert before == {path: path.read_bytes() for path in (bare / ".kaggle").iterdir()}
    for path in home.rglob("*"):
        assert path.is_dir()
    told = f"{findings}"
    assert server.token not in told
    assert server.key not in told
    assert not (bare / ".config").exists()


@pytest.mark.parametrize("minutes", [-600, -29, -1, 1])
def test_a_sign_in_that_expired_is_renewed_first(
    server: KaggleServer, bare: Path, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    """Kaggle's library takes a token for valid until 30 minutes after its end, and gets a 401."""
    oauth(server, bare, monkeypatch.setenv, minutes=minutes)
    adapter = made(bare)
    assert adapter.quota()
    adapter.close()
    operations = [h.operation for h in server.requests]
    assert operations[0] == "GenerateAccessToken"
    bearer = {h.headers["authorization"] for h in server.requests[1:]}
    assert bearer == {f"Bearer {server.renewed}"}
    kept = bare / ".kaggle/credentials.json"
    assert json.loads(kept.read_text())["access_token"] == server.renewed
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_sign_in_that_is_revoked_says_so(
    server: KaggleServer, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refresh token is refused: sign in again."""
    oauth(server, bare, monkeypatch.setenv, minutes=-60)
    server.refresh = "another"
    adapter = made(bare)
    with pytest.raises(AuthError):
        adapter.quota()
    adapter.close()


def test_nothing_at_all_is_told_with_what_to_do(server: KaggleServer, bare: Path) -> None:
    """And no request leaves."""
    adapter = made(bare)
    finding = adapter.diagnose("")[-1]
    assert (finding.name, finding.ok) == ("credentials", False)
    assert "https://www.kaggle.com/settings" in finding.hint
    assert not server.requests
    adapter.close()


@pytest.mark.parametrize("file", ["kaggle.json", "credentials.json"])
def test_a_damaged_file_is_named(server: KaggleServer, bare: Path, file: str) -> None:
    """Not passed over in silence: the person thinks that they are signed in."""
    (bare / ".kaggle" / file).write_text("{")
    adapter = made(bare)
    with pytest.raises(AuthError, match=file.replace(".", r"\.")):
        adapter.quota()
    adapter.close()


def test_a_rejected_token_is_not_hidden_by_a_good_key(
    server: KaggleServer, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kaggle's program names the key and sends the token all the same; here what is sent is what is named."""
    key_file(server, bare, monkeypatch.setenv)
    monkeypatch.setenv("KAGGLE_API_TOKEN", "KGAT_wrong-token")
    adapter = made(bare)
    with pytest.raises(AuthError, match="access token in KAGGLE_API_TOKEN") as caught:
        adapter.quota()
    assert "wrong-token" not in f"{caught.value.message}{caught.value.hint}"
    adapter.close()


def test_an_answer_that_repeats_the_token_is_shown_without_it(
    server: KaggleServer, stage: Stage
) -> None:
    """What the platform says may be quoted; what it repeats of ours may not."""
    said = {"code": 400, "message": f"the header Bearer {server.token} is odd"}
    server.instead["GetAcceleratorQuotaStatistics"] = said
    with pytest.raises(RejectedError, match=r"Bearer \*\*\* is odd"):
        stage.adapter.quota()


def test_a_missing_library_is_told_with_what_to_install(
    server: KaggleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything else is looked for."""
    monkeypatch.setitem(sys.modules, "kagglesdk.kaggle_client", None)
    adapter = made(tmp_path)
    with pytest.raises(MissingSDKError) as caught:
        adapter.offers()
    assert "pip install 'kagglesdk" in caught.value.hint
    assert not server.requests


def test_settings_of_kaggle_s_program_do_not_leak_in(
    server: KaggleServer, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KAGGLE_TOKEN is a setting of its program that beats a valid key; the environment's other address is not ours."""
    key_in_env(server, bare, monkeypatch.setenv)
    monkeypatch.setenv("KAGGLE_TOKEN", "nonsense")
    monkeypatch.setenv("KAGGLE_API_ENVIRONMENT", "STAGING")
    adapter = made(bare)
    assert adapter.quota()
    adapter.close()


def test_another_account_than_the_connected_one_is_refused(
    server: KaggleServer, stage: Stage, tmp_path: Path
) -> None:
    """One account a home; a token that was exchanged is seen at the first call, before anything is started."""
    adapter = made(tmp_path, account="grace")
    assert adapter.account == "grace"
    with pytest.raises(AuthError, match="is ada's, and grace was connected") as caught:
        adapter.start(stage.adapter.render(stage.launch("s-1")))
    assert "freegpu connect kaggle" in caught.value.hint
    assert not server.kernels
    assert not server.data.known
    adapter.close()


def test_a_token_that_is_replaced_is_taken_up(
    server: KaggleServer, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`freegpu up` runs for weeks: after a 401 credentials are looked for again."""
    token_file(server, bare, monkeypatch.setenv)
    adapter = made(bare)
    assert adapter.quota()
    server.token = "KGAT_new"
    with pytest.raises(AuthError):
        adapter.quota()
    token_file(server, bare, monkeypatch.setenv)
    assert adapter.quota()
    adapter.close()


def test_what_was_found_is_shown_in_words(stage: Stage, server: KaggleServer) -> None:
    """Quota with its refresh, the clock, and the way of carrying with what it means."""
    server.spent["gpu"] = 3600.0 * 4
    findings = {f.name: f for f in stage.adapter.diagnose("s3://b")}  # type: ignore[attr-defined]
    assert list(findings) == [
        "installed", "credentials", "quota", "sessions", "clock", "carry", "stopping",
    ]  # fmt: skip
    assert findings["quota"].detail.startswith(
        "gpu 26.0 of 30 h left, tpu 20.0 of 20 h left, back at "
    )
    assert findings["clock"].ok
    assert "no credentials leave" in findings["carry"].detail
    server.set_faults(skew_s=600)
    findings = {f.name: f for f in stage.adapter.diagnose("s3://b")}  # type: ignore[attr-defined]
    assert findings["clock"].ok is False
    assert "600 s" in findings["clock"].detail or "599 s" in findings["clock"].detail


def test_an_account_is_told_without_a_call(server: KaggleServer, tmp_path: Path) -> None:
    """Who is connected, what it can: known offline, and at once."""
    begun = time.monotonic()
    adapter = made(tmp_path, account="ada")
    assert adapter.account == "ada"
    assert adapter.capabilities.sealed
    assert not made(tmp_path, carry="store").capabilities.sealed
    assert time.monotonic() - begun < 1
    assert not server.requests
    assert os.environ["KAGGLE_API_TOKEN"] == server.token
    adapter.close()
