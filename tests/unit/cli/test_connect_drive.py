"""`freegpu connect drive` as it is typed, against a Google on the loopback; the browser is one that clicks at once."""

from __future__ import annotations

import io
import json
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import keyring
import keyring.backend
import keyring.backends.fail
import pytest

from freegpu import config
from freegpu.cli.app import run
from freegpu.cli.call import Call
from freegpu.cli.output import Output
from freegpu.orchestrator import drive_access
from freegpu.testing.drive_server import DriveServer


class Memory(keyring.backend.KeyringBackend):
    """A keyring that remembers, or that says yes and forgets (`null`)."""

    priority = 1

    def __init__(self, *, forgets: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[tuple[str, str], str] = {}
        self.forgets = forgets

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        if not self.forgets:
            self.kept[service, username] = password


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def envelope(self) -> Any:
        return json.loads(self.out)


Shell = Callable[..., Answer]


@pytest.fixture
def server() -> Iterator[DriveServer]:
    with DriveServer() as made:
        yield made


@pytest.fixture
def client_file(server: DriveServer, tmp_path: Path) -> Path:
    path = tmp_path / "client_secret.json"
    path.write_text(server.oauth.client_file("mine"), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def ring() -> Iterator[Memory]:
    before, made = keyring.get_keyring(), Memory()
    keyring.set_keyring(made)
    yield made
    keyring.set_keyring(before)


@pytest.fixture
def visited() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def _browser(monkeypatch: pytest.MonkeyPatch, visited: list[str]) -> None:
    """Opens the address and follows where it is sent, as a person who clicks "Allow" does."""

    def follow(url: str) -> None:
        try:
            with urllib.request.urlopen(url, timeout=10) as page:
                page.read()
        except urllib.error.HTTPError as refused:
            refused.close()

    def visit(url: str) -> bool:
        visited.append(url)
        threading.Thread(target=follow, args=(url,), daemon=True).start()
        return True

    monkeypatch.setattr("webbrowser.open", visit)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def typed(home: Path, tmp_path: Path) -> Shell:
    """Runs a command line; a store is set already, so that none is measured, unless `store` is ""."""

    def call(
        *argv: str, store: str = f"folder:{tmp_path}", environ: Mapping[str, str] | None = None
    ) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        around = {"FREEGPU_HOME": str(home), "FREEGPU_STORE": store, **(environ or {})}
        made = Call(out=Output(stdout=out, stderr=err, environ=around), environ=around)
        code = run(argv, call=made)
        return Answer(code, out.getvalue(), err.getvalue())

    return call


def test_signing_in_is_once_and_is_tried_at_once(
    typed: Shell, server: DriveServer, client_file: Path, visited: list[str], home: Path
) -> None:
    """A browser, a code with PKCE, a refresh token; account and space are shown; the second time nothing is asked."""
    server.drive.quota = 15 * 10**9
    first = typed("connect", "drive", "--client", str(client_file))
    assert first.code == 0, first.err
    assert server.drive.email in first.out
    assert "15.0 GB of 15.0 GB" in first.out
    assert "only what this client made" in first.out
    question = parse_qs(urlsplit(visited[0]).query)
    assert question["scope"] == ["https://www.googleapis.com/auth/drive.file"]
    assert question["code_challenge_method"] == ["S256"]
    assert question["redirect_uri"][0].startswith("http://127.0.0.1:")
    again = typed("connect", "drive")
    assert again.code == 0, again.err
    assert len(visited) == 1
    # nothing of it is anywhere in the home, and no secret was printed
    (refresh,) = server.oauth.refresh
    for path in home.rglob("*"):
        assert not path.is_file() or refresh.encode() not in path.read_bytes()
    for answer in (first, again):
        assert refresh not in answer.out + answer.err
        assert server.oauth.clients["mine"] not in answer.out + answer.err


@pytest.mark.parametrize("kind", ["none", "forgets"])
def test_without_a_keyring_the_sign_in_is_in_a_private_file(
    typed: Shell, client_file: Path, home: Path, kind: str
) -> None:
    """The backend that fails, and the one that says yes and keeps nothing; the file is the owner's alone."""
    failing: Any = keyring.backends.fail.Keyring
    keyring.set_keyring(failing() if kind == "none" else Memory(forgets=True))
    answer = typed("connect", "drive", "--client", str(client_file), "--json")
    path = home / "drive.json"
    assert answer.envelope["data"]["kept"] == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert typed("connect", "drive").code == 0


def test_the_secret_is_printed_only_when_asked_for_and_opens_the_store(
    typed: Shell, server: DriveServer, client_file: Path, home: Path
) -> None:
    """Alone on stdout; with it a notebook sees what this client made, as `access_for` does here."""
    from freegpu.agent.stores import Access, open_store

    typed("connect", "drive", "--client", str(client_file))
    quiet = typed("connect", "drive", "--json")
    assert "secret" not in quiet.envelope["data"]
    shown = typed("connect", "drive", "--show-secret")
    secret = shown.out.strip()
    assert set(json.loads(secret)) == {
        "client_id", "client_secret", "refresh_token", "token_uri", "scope",
    }  # fmt: skip
    assert typed("connect", "drive", "--show-secret", "--json").envelope["data"]["secret"] == secret
    url = quiet.envelope["data"]["store"]
    settings = config.load({"FREEGPU_HOME": str(home)})
    here = open_store(url, drive_access.access_for(settings))
    here.put("freegpu.json", b"{}")
    here.put("jobs/x", b"mine")
    notebook = open_store(url, Access(secrets={"FREEGPU_DRIVE": secret}))
    assert notebook.get("jobs/x") == b"mine"
    notebook.put("jobs/y", b"theirs")
    assert here.get("jobs/y") == b"theirs"


@pytest.mark.parametrize("scope", ["drive.file", "drive"])
def test_it_says_which_notebooks_need_the_secret_and_that_is_so(
    typed: Shell, server: DriveServer, client_file: Path, scope: str, home: Path
) -> None:
    """With `drive` what Colab's own sign-in (another client) writes is seen here; with drive.file it is not."""
    from freegpu.agent.stores import Access, open_store
    from freegpu.agent.stores.base import ObjectMissing

    answer = typed("connect", "drive", "--client", str(client_file), "--scope", scope, "--json")
    data = answer.envelope["data"]
    assert data["scope"] == scope
    settings = config.load({"FREEGPU_HOME": str(home)})
    here = open_store(data["store"], drive_access.access_for(settings))
    here.put("freegpu.json", b"{}")
    token = server.oauth.access_token("google.colab.auth", "drive")
    colab = open_store(data["store"], Access(token=lambda: (token, 3600.0)))
    colab.put("jobs/x", b"from colab")
    if scope == "drive":
        assert "may sign in as you" in data["notebooks"]
        assert here.get("jobs/x") == b"from colab"
    else:
        assert "every notebook needs the secret FREEGPU_DRIVE" in data["notebooks"]
        with pytest.raises(ObjectMissing):
            here.get("jobs/x")


def test_after_a_revocation_the_same_client_signs_in_again_without_its_file(
    typed: Shell, server: DriveServer, client_file: Path, visited: list[str]
) -> None:
    """invalid_grant is no dead end, and nobody is asked for the file twice."""
    typed("connect", "drive", "--client", str(client_file))
    server.oauth.revoke_all()
    client_file.unlink()
    answer = typed("connect", "drive")
    assert answer.code == 0, answer.err
    assert len(visited) == 2


def test_what_a_person_may_do_wrong_on_google_s_page(
    typed: Shell, server: DriveServer, client_file: Path, home: Path
) -> None:
    """Saying no, and unticking the box: a sentence, exit code 42, and nothing is kept."""
    server.oauth.consent = "deny"
    answer = typed("connect", "drive", "--client", str(client_file))
    assert answer.code == 42
    assert "did not allow" in answer.err
    server.oauth.consent = "allow"
    server.oauth.unticked = {"drive.file"}
    answer = typed("connect", "drive", "--client", str(client_file))
    assert answer.code == 42
    assert "not ticked" in answer.err
    assert not (home / "drive.json").exists()


def test_an_answer_with_another_state_is_not_taken(
    typed: Shell, client_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that sends the browser to our port with a code of its own gets a 400, and the sign-in goes on."""
    statuses: list[int] = []

    def attacked(url: str) -> bool:
        back = parse_qs(urlsplit(url).query)["redirect_uri"][0]

        def visit() -> None:
            try:
                urllib.request.urlopen(f"{back}?code=evil&state=guess", timeout=10)
            except urllib.error.HTTPError as refused:
                statuses.append(refused.code)
                refused.close()
            urllib.request.urlopen(url, timeout=10).close()

        threading.Thread(target=visit, daemon=True).start()
        return True

    monkeypatch.setattr("webbrowser.open", attacked)
    assert typed("connect", "drive", "--client", str(client_file)).code == 0
    assert statuses == [400]


def test_nobody_comes(
    typed: Shell, client_file: Path, monkeypatch: pytest.MonkeyPatch, visited: list[str]
) -> None:
    """--no-browser prints the address and how to reach it from afar; after its patience it says so."""
    from freegpu.orchestrator import drive_sign_in

    real = drive_sign_in.sign_in
    monkeypatch.setattr(
        drive_sign_in,
        "sign_in",
        lambda client, scope, show: real(client, scope, show, patience_s=0.05, http=None),
    )
    answer = typed("connect", "drive", "--client", str(client_file), "--no-browser")
    assert answer.code == 42
    assert "/o/oauth2/auth?client_id=mine" in answer.err
    assert "ssh -L" in answer.err
    assert "nobody signed in" in answer.err
    assert visited == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "not the JSON file of an OAuth client"),
        ('{"web": {"client_id": "x"}}', "web application"),
        ('{"installed": {"client_id": "x"}}', "not the JSON file"),
        ("[1]", "not the JSON file"),
        (
            '{"installed": {"client_id": "x", "client_secret": "s", "token_uri": "http://evil.example/"}}',
            "not https",
        ),
    ],
)
def test_a_client_file_that_is_none(typed: Shell, tmp_path: Path, text: str, words: str) -> None:
    """One sentence and exit code 10; the secret of a client goes to no address that is not safe."""
    path = tmp_path / "file.json"
    path.write_text(text, encoding="utf-8")
    answer = typed("connect", "drive", "--client", str(path))
    assert answer.code == 10
    assert words in answer.err
    assert typed("connect", "drive", "--client", str(tmp_path / "none")).code == 10


def test_without_anything_it_says_how_to_begin(typed: Shell, home: Path) -> None:
    """Exit code 10, and the home is not even made."""
    answer = typed("connect", "drive")
    assert answer.code == 10
    assert "--client FILE.json" in answer.err
    assert not home.exists()
    assert typed("connect", "drive", "--client", "x", "--rclone", "y").code == 2


# --- rclone ---------------------------------------------------------------------------------------------


def rclone(server: DriveServer, tmp_path: Path, **changes: str) -> dict[str, str]:
    grant = json.loads(server.oauth.grant("rc", "drive"))
    section = {
        "type": "drive",
        "client_id": "rc",
        "client_secret": grant["client_secret"],
        "scope": "drive",
        "token_url": grant["token_uri"],
        "token": json.dumps({"access_token": "x%y", "refresh_token": grant["refresh_token"]}),
        **changes,
    }
    path = tmp_path / "rclone.conf"
    lines = "".join(f"{name} = {value}\n" for name, value in section.items() if value)
    path.write_text(f"[other]\ntype = s3\n\n[my drive]\n{lines}", encoding="utf-8")
    return {"RCLONE_CONFIG": str(path)}


def test_a_remote_of_rclone_s_signs_in_without_a_browser(
    typed: Shell, server: DriveServer, tmp_path: Path, visited: list[str]
) -> None:
    """With the remote's own client and scope."""
    answer = typed(
        "connect", "drive", "--rclone", "my drive:", "--json", environ=rclone(server, tmp_path)
    )
    assert answer.envelope["data"]["scope"] == "drive"
    assert visited == []
    assert typed("connect", "drive").code == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"type": "s3"}, "of type s3"),
        ({"client_id": ""}, "rclone's own OAuth client"),
        ({"team_drive": "0A"}, "shared drive"),
        ({"service_account_file": "/x"}, "service account"),
        ({"token": ""}, "not signed in"),
        ({"token": "{broken"}, "not signed in"),
        ({"scope": "drive.readonly"}, "may not write"),
    ],
)
def test_a_remote_that_cannot_be_used(
    typed: Shell, server: DriveServer, tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    """Each in its own sentence, exit code 10."""
    answer = typed(
        "connect", "drive", "--rclone", "my drive", environ=rclone(server, tmp_path, **changes)
    )
    assert answer.code == 10
    assert words in answer.err


def test_an_encrypted_or_missing_rclone_configuration_and_a_missing_remote(
    typed: Shell, server: DriveServer, tmp_path: Path
) -> None:
    """What it is, and what to do instead."""
    environ = rclone(server, tmp_path)
    answer = typed("connect", "drive", "--rclone", "none", environ=environ)
    assert "its Drive remotes are: my drive" in answer.err
    Path(environ["RCLONE_CONFIG"]).write_text(
        "# Encrypted rclone configuration File\n\nRCLONE_ENCRYPT_V0:\nabc\n", encoding="utf-8"
    )
    assert "is encrypted" in typed("connect", "drive", "--rclone", "x", environ=environ).err
    gone = {"RCLONE_CONFIG": str(tmp_path / "none")}
    assert "cannot be read" in typed("connect", "drive", "--rclone", "x", environ=gone).err


def test_an_api_that_is_not_enabled_is_told_and_nothing_is_kept(
    typed: Shell, server: DriveServer, client_file: Path, home: Path
) -> None:
    """What people forget most: exit code 50, with what to do."""
    server.fail("about.get", 403, "accessNotConfigured", times=9)
    answer = typed("connect", "drive", "--client", str(client_file))
    assert answer.code == 50
    assert "not enabled" in answer.err
    assert not (home / "drive.json").exists()


@pytest.mark.slow
def test_the_store_becomes_drive_where_none_is_set(
    typed: Shell, server: DriveServer, client_file: Path, home: Path
) -> None:
    """Checked, marked and measured as `connect store` does; another store that was set stays unless --use."""
    answer = typed("connect", "drive", "--client", str(client_file), "--json", store="")
    assert answer.code == 0, answer.out
    data = answer.envelope["data"]
    assert data["connected"]["store"] == data["store"] == f"drive:freegpu?endpoint={server.url}"
    assert config.load({"FREEGPU_HOME": str(home)}).store == data["store"]
    assert [file.name for file in server.named("freegpu.json")] == ["freegpu.json"]
    measured = data["connected"]["measured"]
    assert measured["server_digest"] is True
