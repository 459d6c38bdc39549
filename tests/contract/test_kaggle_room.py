"""Nothing is uploaded for a session that Kaggle would refuse: running ones are counted first, a refusal is remembered."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.kaggle import KaggleAdapter
from freegpu.adapters.kaggle.calls import Calls
from freegpu.errors import NoCapacityError
from freegpu.testing.kaggle_server import KaggleServer
from freegpu.testing.suites import Stage
from tests.contract.kaggle import made, server, stage

__all__ = ["server", "stage"]


def uploads(server: KaggleServer) -> int:
    return sum(heard.operation == "StartBlobUpload" for heard in server.requests)


def pushes(server: KaggleServer) -> int:
    return sum(heard.operation == "SaveKernel" for heard in server.requests)


def own(adapter: Any, title: str, **more: Any) -> None:
    """A notebook that the user runs by themselves, on the account that freegpu uses."""
    calls: Calls = adapter.calls
    told = {
        "newTitle": title, "text": "import time; time.sleep(90)", "language": "python",
        "kernelType": "script", "isPrivate": True, "machineShape": "NvidiaTeslaT4", "enableGpu": True,
    }  # fmt: skip
    assert not calls.ask("SaveKernel", **{**told, **more}).get("error")


def end(adapter: Any, slug: str) -> None:
    adapter.calls.ask("DeleteKernel", userName="ada", kernelSlug=slug)


def test_a_full_account_is_seen_before_anything_is_uploaded(
    stage: Stage, server: KaggleServer
) -> None:
    """Whoever started what runs: the user's own notebooks count. Room again is used at once."""
    own(stage.adapter, "my thesis")
    stage.start("s-1")
    before = uploads(server), pushes(server)
    for key in ("s-2", "s-3"):
        with pytest.raises(
            NoCapacityError, match="2 sessions run already: ada/freegpu-s-1, ada/my-"
        ):
            stage.start(key)
    assert (uploads(server), pushes(server)) == before
    assert set(server.data.known) == {"ada/freegpu-s-1"}
    end(stage.adapter, "my-thesis")
    assert stage.start("s-4") == "ada/freegpu-s-4"


def test_a_refusal_that_nothing_foretold_costs_one_upload(
    stage: Stage, server: KaggleServer
) -> None:
    """Finished runs may count as active for ever (#473, #185): until something ends, or a while, nothing is sent again."""
    own(stage.adapter, "my thesis")
    server.set_faults(refuse_sessions=True)
    for key in ("s-1", "s-2", "s-3"):
        again = stage.make(stage.home)  # each tick is a process of its own
        with pytest.raises(NoCapacityError, match="session count of 2 reached"):
            again.start(again_request(stage, key))
        again.close()
    assert (uploads(server), pushes(server)) == (1, 2)
    assert not server.data.known
    server.set_faults(refuse_sessions=None)
    end(stage.adapter, "my-thesis")
    assert stage.start("s-4") == "ada/freegpu-s-4"


def again_request(stage: Stage, key: str) -> Any:
    return stage.adapter.render(stage.launch(key))


def test_a_refusal_is_forgotten_after_a_while(stage: Stage, server: KaggleServer) -> None:
    """What Kaggle counts may change without anything that is to be seen."""
    server.set_faults(refuse_sessions=True)
    with pytest.raises(NoCapacityError):
        stage.start("s-1")
    server.set_faults(refuse_sessions=None)
    with pytest.raises(NoCapacityError, match="a moment ago"):
        stage.start("s-2")
    note = stage.home / "kaggle" / "busy.json"
    told = json.loads(note.read_text())
    told["gpu"]["at"] -= 601
    note.write_text(json.dumps(told))
    assert stage.start("s-3") == "ada/freegpu-s-3"


@pytest.mark.parametrize("note", ["", "[]", '{"gpu": 7}', '{"gpu": {"at": 1}}'])
def test_a_damaged_note_is_none(stage: Stage, server: KaggleServer, note: str) -> None:
    """It is a courtesy, and no reason to start nothing."""
    (stage.home / "kaggle").mkdir()
    (stage.home / "kaggle" / "busy.json").write_text(note)
    assert stage.start("s-1")


@pytest.mark.parametrize("how", ["500", "html", "null", "rows"])
def test_an_account_that_cannot_be_looked_at_is_asked_by_the_push(
    stage: Stage, server: KaggleServer, how: str
) -> None:
    """Counting is a courtesy too: Kaggle's own word is the one that counts."""
    if how == "html":
        server.html.add("ListKernels")
    elif how == "500":
        server.set_faults(fail={"value": 500, "only": ["ListKernels"]})
    else:
        server.instead["ListKernels"] = {"kernels": {"null": None, "rows": [None, 3, {}]}[how]}
    assert stage.start("s-1")


def test_only_what_runs_with_cards_counts(stage: Stage, server: KaggleServer) -> None:
    """Not what runs on a processor, what is over, or what was deleted and is shown still."""
    own(stage.adapter, "on a processor", machineShape="", enableGpu=False)
    own(stage.adapter, "over and done", text="print(1)")
    own(stage.adapter, "my thesis")
    server.shown_still = ["freegpu-gone", "another-gone"]
    end_by = time.monotonic() + 10
    while len(server.running("gpu")) > 1 and time.monotonic() < end_by:
        time.sleep(0.05)
    assert stage.start("s-1")


def test_a_session_that_uploads_nothing_is_not_looked_for(
    server: KaggleServer, tmp_path: Path
) -> None:
    """With the store there is nothing to lose: the push alone is the question."""
    stage = Stage(tmp_path / "store", lambda home: made(home, carry="store"))
    stage.start("s-1")
    assert not [h for h in server.requests if h.operation == "ListKernels"]
    stage.close()


def test_the_list_is_the_user_s_own_by_the_last_run(stage: Stage, server: KaggleServer) -> None:
    """Without the group Kaggle lists everybody's, without the order what is popular."""
    stage.start("s-1")
    (heard,) = [h.json for h in server.requests if h.operation == "ListKernels"]
    assert (heard["group"], heard["sortBy"]) == ("PROFILE", "DATE_RUN")
    assert isinstance(stage.adapter, KaggleAdapter)
