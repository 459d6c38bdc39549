"""`freegpu connect store` and `freegpu doctor store` as they are typed, on real folders and a real sshd."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from freegpu import config
from freegpu.agent.stores.folder import FolderStore
from freegpu.cli.app import run
from freegpu.cli.call import Call
from freegpu.cli.output import Output
from freegpu.clock import SystemClock
from freegpu.orchestrator import probe, shared
from freegpu.orchestrator.home import orchestrator_lock
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.operations import Workspace
from tests.contract.sshd import Sshd
from tests.servers.s3 import SECRETS, S3Server, rclone_s3_fixture, seaweed_fixture

#: fixtures, by the names `rclone_s3_server` and `seaweed_server`
__all__ = ["rclone_s3_fixture", "seaweed_fixture"]

JOB = "name: waits\nrun: 'true'\nresources: {accelerators: H200}\n"


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)["data"]


Shell = Callable[..., Answer]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def shell(home: Path) -> Shell:
    """Runs a command line in this process, with this home."""

    def call(*argv: str, environ: Mapping[str, str] | None = None) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        around = {"FREEGPU_HOME": str(home), **(environ or {})}
        made = Call(out=Output(stdout=out, stderr=err, environ=around), environ=around)
        code = run(argv, call=made)
        return Answer(code, out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    made = tmp_path / "disk"
    made.mkdir()
    return made


def toml(home: Path) -> str:
    return (home / "freegpu.toml").read_text()


def test_a_store_is_marked_measured_and_written_into_the_settings(
    shell: Shell, home: Path, disk: Path
) -> None:
    """From then on every command uses it; what was measured is kept and given to whoever opens it."""
    answer = shell("connect", "store", f"folder:{disk}")
    assert answer.code == 0, answer.err
    assert "is a new store" in answer.out
    assert "one of racing writers wins  yes" in answer.out
    assert toml(home) == f'store = "folder:{disk}"\n'
    assert [path.name for path in disk.iterdir() if path.is_file()] == ["freegpu.json"]
    assert FolderStore(disk).list("") == ["freegpu.json"]
    settings = config.load({}, home=home)
    assert settings.store == f"folder:{disk}"
    with Workspace.open(settings) as workspace:
        found = shared.measured(workspace.ledger, settings.store)
        assert found is not None
        access = shared.access_for(settings, workspace.ledger)
        assert access.known == found.properties
        assert access.known.cas is True
    again = shell("connect", "store", str(disk), "--json")
    assert (again.data["changed"], again.data["made"]) == (False, False)


def test_the_settings_file_keeps_its_comments(shell: Shell, home: Path, disk: Path) -> None:
    """It is its owner's."""
    home.mkdir()
    before = "# mine\ntick_s = 10  # slow\n\n# no local jobs\n[platforms.local]\nenabled = false\n"
    (home / "freegpu.toml").write_text(before)
    assert shell("connect", "store", f"folder:{disk}").code == 0
    assert toml(home) == f'store = "folder:{disk}"\n{before}'


def test_a_relative_folder_is_seen_from_here(
    shell: Shell, home: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And written in full: the file is read from elsewhere."""
    monkeypatch.chdir(disk.parent)
    assert shell("connect", "store", "disk").code == 0
    assert toml(home) == f'store = "folder:{disk}"\n'


@pytest.mark.parametrize(
    ("url", "code", "part"),
    [
        ("folder:/nowhere/at/all", 50, "parent folder"),
        ("sftq://host/x", 10, "no store speaks 'sftq'"),
        ("sftp://me:secret@host/x", 10, "holds a password"),
        ("sftp://host", 10, "absolute folder"),
        ("rclone:nothing", 10, "rclone:REMOTE:path"),
        ("", 10, "is empty"),
        ("folder:", 10, "is empty"),
    ],
)
def test_a_store_that_cannot_be_used_changes_nothing(
    shell: Shell, home: Path, url: str, code: int, part: str
) -> None:
    """One sentence, the right exit code, no settings file, and no password repeated."""
    answer = shell("connect", "store", url)
    assert answer.code == code
    assert part in answer.err
    assert "secret" not in answer.err
    assert not (home / "freegpu.toml").exists()


def test_another_home_s_store_is_refused(
    shell: Shell, home: Path, disk: Path, tmp_path: Path
) -> None:
    """Exit code 53, and the settings stay."""
    assert shell("connect", "store", str(disk)).code == 0
    other = shell("connect", "store", str(disk), environ={"FREEGPU_HOME": str(tmp_path / "two")})
    assert other.code == 53
    assert not (tmp_path / "two" / "freegpu.toml").exists()


def test_a_store_that_open_jobs_depend_on_is_not_left_unless_told(
    shell: Shell, home: Path, disk: Path, tmp_path: Path
) -> None:
    """Their code and checkpoints lie there. --force does it and says what that means; after a cancel it is free."""
    (tmp_path / "new").mkdir()
    assert shell("connect", "store", str(disk)).code == 0
    (tmp_path / "job.yaml").write_text(JOB)
    assert shell("submit", str(tmp_path / "job.yaml")).code == 0
    refused = shell("connect", "store", str(tmp_path / "new"))
    assert refused.code == 10
    assert (
        f"1 open jobs (0 with a checkpoint) and 0 sessions depend on the store folder:{disk}"
        in (refused.err)
    )
    assert "--force" in refused.err
    assert toml(home) == f'store = "folder:{disk}"\n'
    assert list((tmp_path / "new").iterdir()) == []
    # the same store again is no move
    assert shell("connect", "store", str(disk)).code == 0
    forced = shell("connect", "store", str(tmp_path / "new"), "--force")
    assert forced.code == 0
    assert "1 open jobs cannot go on" in forced.err
    assert toml(home) == f'store = "folder:{tmp_path}/new"\n'


def test_a_cancelled_job_holds_nothing(
    shell: Shell, home: Path, disk: Path, tmp_path: Path
) -> None:
    """Then the store may be left."""
    (tmp_path / "new").mkdir()
    assert shell("connect", "store", str(disk)).code == 0
    (tmp_path / "job.yaml").write_text(JOB)
    assert shell("submit", str(tmp_path / "job.yaml")).code == 0
    assert shell("cancel", "waits").code == 0
    assert shell("connect", "store", str(tmp_path / "new")).code == 0


def test_an_orchestrator_that_runs_keeps_its_store(shell: Shell, home: Path, disk: Path) -> None:
    """It would go on with the one before: exit code 21, and it is named."""
    home.mkdir()
    with orchestrator_lock(home, command="freegpu up", since="today") as holder:
        assert holder is None
        answer = shell("connect", "store", str(disk))
    assert answer.code == 21
    assert "freegpu up" in answer.err
    assert not (home / "freegpu.toml").exists()


def test_a_variable_that_goes_before_the_file_is_mentioned(
    shell: Shell, home: Path, disk: Path, tmp_path: Path
) -> None:
    """Or a user would wonder why nothing changed."""
    (tmp_path / "other").mkdir()
    answer = shell(
        "connect", "store", str(disk), environ={"FREEGPU_STORE": str(tmp_path / "other")}
    )
    assert answer.code == 0
    assert "FREEGPU_STORE is set in your environment" in answer.err
    silent = shell("connect", "store", str(disk), environ={"FREEGPU_STORE": str(disk)})
    assert "FREEGPU_STORE" not in silent.err


def test_doctor_measures_the_store_and_says_what_that_means(
    shell: Shell, home: Path, disk: Path
) -> None:
    """Figures, findings and sentences, for people and for programs; what it found is kept too."""
    assert shell("connect", "store", str(disk)).code == 0
    answer = shell("doctor", "store")
    assert answer.code == 0
    assert "`checkpoint.every` below" in answer.out
    assert "nothing is broken" in answer.out
    data = shell("doctor", "store", "--json").data
    assert data["measured"]["cas"] is True
    assert data["measured"]["put"]["median_s"] > 0
    assert data["measured"]["space"]["free"] > 0
    assert any("1 GB" in line for line in data["means"])
    settings = config.load({}, home=home)
    ledger = Ledger.open(settings.db, clock=SystemClock())
    kept = shared.measured(ledger, settings.store)
    ledger.close()
    assert kept is not None
    assert kept.at >= datetime.fromisoformat(data["measured"]["at"]).astimezone(UTC).replace(
        microsecond=0
    )
    assert FolderStore(disk).list("") == ["freegpu.json"]


def test_doctor_finds_a_store_that_is_gone(shell: Shell, home: Path, disk: Path) -> None:
    """A finding, not a failure of doctor: exit code 10, no figures."""
    assert shell("connect", "store", str(disk)).code == 0
    disk.rename(disk.parent / "unplugged")
    answer = shell("doctor", "store", "--json")
    assert answer.code == 10
    assert answer.data["measured"] is None
    assert "is gone" in answer.data["checks"][0]["detail"]
    assert not disk.exists()
    assert shell("doctor", "store", "--live").code == 2


def test_a_probe_that_is_old_is_not_believed(shell: Shell, home: Path, disk: Path) -> None:
    """Then clients are as careful as if nothing had been found."""
    assert shell("connect", "store", str(disk)).code == 0
    settings = config.load({}, home=home)
    with Workspace.open(settings) as workspace:
        found = shared.measured(workspace.ledger, settings.store)
        assert found is not None
        assert shared.access_for(settings, workspace.ledger).known == found.properties
        old = replace(found, at=found.at - probe.MAX_AGE - timedelta(days=1))
        shared.remember(workspace.ledger, settings.store, old)
        assert shared.access_for(settings, workspace.ledger).known is None


# --- the store is away --------------------------------------------------------------------------------------


@pytest.fixture
def away(shell: Shell, disk: Path, tmp_path: Path) -> Iterator[Path]:
    """A job waits, and the disk with the store has been unplugged."""
    assert shell("connect", "store", str(disk)).code == 0
    (tmp_path / "job.yaml").write_text(JOB)
    assert shell("submit", str(tmp_path / "job.yaml")).code == 0
    disk.rename(tmp_path / "unplugged")
    yield disk
    assert not disk.exists()


@pytest.mark.parametrize("line", [["status"], ["jobs"], ["show", "waits"], ["why", "waits"]])
def test_looking_is_answered_by_the_ledger_while_the_store_is_away(
    shell: Shell, away: Path, line: list[str]
) -> None:
    """Exit code 0 and the answer; that the store is gone is said once; to a program it is partial."""
    answer = shell(*line)
    assert answer.code == 0
    assert "waits" in answer.out
    assert (answer.out + answer.err).count("is gone") == 1
    document = json.loads(shell(*line, "--json").out)
    assert (document["status"], document["exit_code"]) == ("partial", 0)
    assert [error["code"] for error in document["errors"]] == ["store"]
    assert "waits" in json.dumps(document["data"])


@pytest.mark.parametrize("line", [["logs", "waits"], ["pull", "waits"], ["tick"], ["gc"]])
def test_what_needs_the_store_fails_while_it_is_away(
    shell: Shell, away: Path, line: list[str]
) -> None:
    """Exit code 50, once in full."""
    answer = shell(*line)
    if line[0] != "pull":  # nothing is ready to be pulled, and that comes first
        assert answer.code == 50
    assert answer.err.count("is gone") <= 1
    assert answer.code


def test_when_the_store_is_back_everything_is(shell: Shell, away: Path, tmp_path: Path) -> None:
    """Nothing was made in its place meanwhile."""
    assert shell("status").code == 0
    (tmp_path / "unplugged").rename(away)
    document = json.loads(shell("status", "--json").out)
    assert document["status"] == "success"
    assert document["data"]["problems"] == []
    away.rename(tmp_path / "unplugged")


def test_status_without_open_work_names_the_store_that_is_away(
    shell: Shell, disk: Path, tmp_path: Path
) -> None:
    """No tick was needed, so status itself found out."""
    assert shell("connect", "store", str(disk)).code == 0
    disk.rename(tmp_path / "unplugged")
    answer = shell("status")
    assert answer.code == 0
    assert answer.err.count("is gone") == 1
    assert "is gone" in shell("status", "--json").data["problems"][0]


def test_somebody_else_s_store_is_not_called_away(
    shell: Shell, home: Path, disk: Path, tmp_path: Path
) -> None:
    """That is a mistake in the settings, and looking says so too: exit code 53."""
    assert shell("connect", "store", str(disk)).code == 0
    (disk / "freegpu.json").write_text('{"format": 1, "home": "h-other"}')
    assert shell("status").code == 53


# --- over ssh -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    made = Sshd(tmp_path_factory.mktemp("connect-sshd"))
    made.start()
    yield made
    made.stop()


def test_a_folder_behind_ssh_is_connected_with_what_its_server_can_do(
    shell: Shell, home: Path, disk: Path, server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSH's rename lets one racer win, and sha256sum may be run there: both are found, not assumed."""
    monkeypatch.setenv("HOME", str(server.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    answer = shell("connect", "store", server.url(disk), "--json")
    assert answer.code == 0, answer.out
    measured = answer.data["measured"]
    assert (measured["cas"], measured["ordered"], measured["server_digest"]) == (True, True, True)
    assert measured["space"]["free"] > 0
    assert toml(home) == f'store = "{server.url(disk)}"\n'
    assert FolderStore(disk).list("") == ["freegpu.json"]


def test_a_host_that_is_not_known_changes_nothing(
    shell: Shell,
    home: Path,
    disk: Path,
    server: Sshd,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The sentence says how to accept it."""
    (tmp_path / "me" / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    answer = shell("connect", "store", server.url(disk))
    assert answer.code == 50
    assert f"run `ssh -p {server.port} {server.user}@127.0.0.1` once" in answer.err
    assert not (home / "freegpu.toml").exists()


def test_a_server_that_is_down_is_not_called_a_store_that_is_gone(
    shell: Shell, disk: Path, server: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its checkpoints are safe where they are: exit code 50 says that it does not answer, and nothing more."""
    monkeypatch.setenv("HOME", str(server.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr("freegpu.adapters.stores.sftp._DELAYS", (0.0, 0.01))
    assert shell("connect", "store", server.url(disk)).code == 0
    (tmp_path / "job.yaml").write_text(JOB)
    server.stop()
    try:
        answer = shell("tick")
        assert answer.code == 50
        assert "does not answer" in answer.err
        assert "is gone" not in answer.err
        assert "not lost" in answer.err
        assert shell("status").code == 0
    finally:
        server.start()
    assert shell("submit", str(tmp_path / "job.yaml")).code == 0


# --- over S3 ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("running", "keeps"),
    [("seaweed_server", True), ("rclone_s3_server", False)],
    ids=["a server that keeps conditions", "one that answers 200 to them all"],
)
def test_an_s3_server_is_believed_what_it_does_and_not_what_it_answers(
    shell: Shell,
    home: Path,
    running: str,
    keeps: bool,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Conditional writes and checksums are found where they are real; keys come from the environment alone."""
    server: S3Server = request.getfixturevalue(running)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    bucket = f"connect-{running.partition('_')[0]}"
    server.client().create_bucket(Bucket=bucket)
    answer = shell("connect", "store", server.url(bucket), "--json")
    assert answer.code == 0, answer.out
    measured = answer.data["measured"]
    assert (measured["cas"], measured["server_digest"]) == (keeps, keeps)
    assert measured["ordered"]
    assert measured["at_least"] >= 1 << 20
    assert SECRETS["AWS_SECRET_ACCESS_KEY"] not in answer.out + toml(home)
    left = server.client().list_objects_v2(Bucket=bucket)["Contents"]
    assert [item["Key"].rpartition("/")[2] for item in left] == ["freegpu.json"]
