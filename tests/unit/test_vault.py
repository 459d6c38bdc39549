"""A notebook's secrets and rights, and what the agent is started with; the platforms' modules are stand-ins."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from freegpu import cards
from freegpu.agent import gpu, notebook
from freegpu.agent.vault import VaultError, vault

NOW = datetime(2026, 12, 2, 12, tzinfo=UTC)


class SecretNotFoundError(Exception):
    pass


class NotebookAccessError(Exception):
    pass


class TimeoutException(Exception):  # noqa: N818 - Colab's own name
    pass


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        monkeypatch.setattr(sys.modules[parent], last, made, raising=False)
    return made


@pytest.fixture
def colab(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """google.colab as far as it is used; `secrets` holds values or what userdata.get raises."""
    state: dict[str, Any] = {"secrets": {}, "unassigned": 0}

    def get(name: str) -> str:
        answer = state["secrets"].get(name, SecretNotFoundError(name))
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    def unassign() -> None:
        state["unassigned"] += 1

    module(monkeypatch, "google.colab")
    module(monkeypatch, "google.colab.userdata", get=get)
    module(monkeypatch, "google.colab.runtime", unassign=unassign)
    return state


def test_secrets_of_any_notebook_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name; one that ends with "?" may be missing; a missing one is told with the place to put it."""
    monkeypatch.setenv("WANTED", "one")
    box = vault("jupyter")
    assert box.find(["WANTED", "OTHER?"]) == {"WANTED": "one"}
    with pytest.raises(VaultError) as caught:
        box.find(["WANTED", "MISSING"])
    assert str(caught.value) == (
        "the secret MISSING is not there: put MISSING into the environment of the notebook's kernel"
    )
    monkeypatch.setenv("WANTED", "")
    with pytest.raises(VaultError, match="WANTED is not there"):
        box.find(["WANTED"])


def test_colab_hands_out_its_own_secrets(colab: dict[str, Any]) -> None:
    """What the person put there; what is not there is missing, or left out where it may be."""
    colab["secrets"] = {"KEY": "value"}
    assert vault("colab").find(["KEY", "OTHER?"]) == {"KEY": "value"}
    with pytest.raises(VaultError, match=r"OTHER is not there: put OTHER into Colab's Secrets"):
        vault("colab").find(["OTHER"])


@pytest.mark.parametrize("error", [NotebookAccessError("KEY"), TimeoutException("KEY")])
def test_a_secret_that_colab_withholds_is_one_sentence(
    colab: dict[str, Any], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """No access, or no page to ask: said with the class, so that it can be looked up. The environment goes first."""
    colab["secrets"] = {"KEY": error}
    with pytest.raises(
        VaultError, match=f"does not hand out the secret KEY.*{type(error).__name__}"
    ):
        vault("colab").find(["KEY"])
    monkeypatch.setenv("KEY", "from the environment")
    assert vault("colab").find(["KEY"]) == {"KEY": "from the environment"}


def test_a_cell_for_colab_says_so_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell is run in the wrong place: one sentence."""
    monkeypatch.setitem(sys.modules, "google.colab", None)
    with pytest.raises(VaultError, match="this cell is for Google Colab"):
        vault("colab")


def test_colab_gives_the_runtime_back_once_and_others_do_nothing(colab: dict[str, Any]) -> None:
    """unassign is Colab's; a machine of one's own is not switched off."""
    vault("colab").release()
    vault("jupyter").release()
    vault("kaggle").release()
    assert colab["unassigned"] == 1


def test_a_runtime_that_cannot_be_given_back_is_no_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The work is done; the person is told to end it."""

    class Box:
        def release(self) -> None:
            raise OSError("404")

    notebook._give_back(Box())  # type: ignore[arg-type]
    assert "could not be given back (404): end it by hand" in capsys.readouterr().out


def test_kaggle_hands_out_attached_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """By UserSecretsClient; whatever it raises, the secret is missing."""

    class UserSecretsClient:
        def get_secret(self, name: str) -> str:
            if name != "KEY":
                raise RuntimeError("No user secrets exist for kernel id and label")
            return "value"

    module(monkeypatch, "kaggle_secrets", UserSecretsClient=UserSecretsClient)
    assert vault("kaggle").find(["KEY", "OTHER?"]) == {"KEY": "value"}
    with pytest.raises(VaultError, match=r"put OTHER into the notebook's Add-ons > Secrets"):
        vault("kaggle").find(["OTHER"])


def test_a_token_is_refreshed_by_colab_for_whoever_runs_the_notebook(
    colab: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """authenticate_user, then google.auth.default with the scope asked for; naive UTC expiry becomes seconds."""
    asked: list[Any] = []

    class Credentials:
        token: str | None = None
        expiry: datetime | None = None

        def refresh(self, request: object) -> None:
            self.token = f"token-{len(asked)}"
            self.expiry = (NOW + timedelta(seconds=3599)).replace(tzinfo=None)

    def default(scopes: list[str]) -> tuple[Any, str]:
        asked.append(scopes)
        return Credentials(), "project"

    module(monkeypatch, "google.colab.auth", authenticate_user=lambda: asked.append("authenticate"))
    import google.auth

    monkeypatch.setattr(google.auth, "default", default)
    monkeypatch.setattr("freegpu.agent.vault.time.time", NOW.timestamp)
    fresh = vault("colab").token("https://www.googleapis.com/auth/drive.file")
    assert asked == ["authenticate", ["https://www.googleapis.com/auth/drive.file"]]
    assert fresh() == ("token-2", 3599.0)
    with pytest.raises(VaultError, match="no way to ask for access to Google Drive"):
        vault("jupyter").token("scope")


def test_a_person_who_says_no_gets_a_sentence(
    colab: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Colab's own error in words, and what to do."""

    def refuse() -> None:
        raise ValueError("Error: credential propagation was unsuccessful")

    module(monkeypatch, "google.colab.auth", authenticate_user=refuse)
    with pytest.raises(
        VaultError, match="credential propagation was unsuccessful; run the cell again"
    ):
        vault("colab").token("scope")


def test_the_token_file_is_private_and_renewed_before_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent reads it beside us: mode 600, a new one when less than ten minutes are left, no sooner."""
    now = [NOW.timestamp()]
    monkeypatch.setattr("freegpu.agent.notebook.time.time", lambda: now[0])
    given: list[str] = []

    def fresh() -> tuple[str, float]:
        given.append(f"token-{len(given)}")
        return given[-1], 3600.0

    keeper = notebook._TokenFile(tmp_path / "token.json", fresh)
    assert keeper.read() == ("token-0", 3600.0)
    assert (tmp_path / "token.json").stat().st_mode & 0o777 == 0o600
    now[0] += 2990
    assert keeper.read() == ("token-0", 610.0)
    now[0] += 20
    assert keeper.read() == ("token-1", 3600.0)
    told = json.loads((tmp_path / "token.json").read_text())
    assert told == {"token": "token-1", "expires_at": now[0] + 3600.0}


# --- what this machine is --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "short"),
    [
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA GeForce RTX 3090", "RTX3090"),
        ("Quadro M4000", "M4000"),
        ("NVIDIA", "NVIDIA"),
        ("", ""),
    ],
)
def test_a_card_is_called_what_people_call_it(driver: str, short: str) -> None:
    """What a job reads in FREEGPU_CARD is a name that the card table has; where it knows the card at all."""
    assert notebook.short_name(driver) == short
    if cards.find(driver):
        assert cards.find(short) is not None


def smi(names: str, capabilities: str = "") -> Callable[[Any], str]:
    return lambda command: capabilities if "compute_cap" in command[1] else names


def test_each_card_is_a_slot_with_what_it_does_fast() -> None:
    """Its driver's index and memory; fp16 on a T4, bf16 on an L4, fp32 where nobody can tell."""
    run = smi(
        "0, Tesla T4, 15360, GPU-a, 550\n1, NVIDIA L4, 23034, GPU-b, 550\n2, Tesla K80, 11441, GPU-c, 470\n",
        "0, 7.5\n1, 8.9\n2, [N/A]\n",
    )
    found = notebook.slots_of(gpu.detect(run), run)
    assert [(s.index, s.card, s.gpus, s.vram_gb, s.precision) for s in found] == [
        (0, "T4", ("0",), 15.0, "fp16"),
        (1, "L4", ("1",), 22.5, "bf16"),
        (2, "K80", ("2",), 11.2, "fp32"),
    ]
    (cpu,) = notebook.slots_of([], smi(""))
    assert (cpu.card, cpu.gpus, cpu.vram_gb) == ("CPU", (), 0.0)


def test_the_time_left_runs_from_the_boot_of_the_runtime() -> None:
    """A cell that is run in the eleventh hour has one hour; a machine of one's own is older than any limit."""
    assert notebook.left_of(None, 5.0) is None
    assert notebook.left_of(43200, 3600.0) == 39600
    assert notebook.left_of(43200, 90000.0) == 43200
    assert notebook.runtime_age() >= 0.0
