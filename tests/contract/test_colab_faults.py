"""What goes wrong with Colab and its program, and what our adapter makes of it; each trap is one that people met."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import PlatformState, SessionRef
from freegpu.adapters.colab import ColabAdapter, account, forget_block
from freegpu.clock import SystemClock
from freegpu.errors import (
    AdapterError,
    AuthError,
    ConfigError,
    MissingSDKError,
    NoCapacityError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    UnreachableError,
)
from freegpu.testing.colab_server import ColabServer
from freegpu.testing.suites import Stage
from freegpu.testing.suites.stage import until
from tests.contract.colab import ACCEPTED, colab_fixture, posts, stage_fixture

__all__ = ["colab_fixture", "stage_fixture"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def refused(stage: Stage) -> AdapterError:
    with pytest.raises(AdapterError) as caught:
        stage.start("s-no")
    assert stage.adapter.find("s-no") is None
    return caught.value


@pytest.mark.parametrize(
    ("status", "outcome", "kind"),
    [
        (503, 2, QuotaExhaustedError),
        (200, 2, QuotaExhaustedError),
        (200, 1, QuotaExhaustedError),
        (412, None, NoCapacityError),
        (503, None, NoCapacityError),
        (400, None, RejectedError),
        (502, None, UnreachableError),
    ],
)
def test_the_outcome_in_the_body_goes_before_the_status(
    colab: ColabServer, stage: Stage, status: int, outcome: int | None, kind: type[AdapterError]
) -> None:
    """A 503 may be a quota that is used up; the program shows neither, and asks four times where we ask once."""
    colab.set_account(refuse={"status": status, "outcome": outcome})
    error = refused(stage)
    assert type(error) is kind
    assert posts(colab) == 1
    if isinstance(error, QuotaExhaustedError):
        assert error.resets_at is not None
    assert colab.endpoints() == []


def test_a_412_without_anything_left_is_the_quota(colab: ColabServer, stage: Stage) -> None:
    """Colab says "too many" of free accounts that have used up what they had."""
    colab.set_account(refuse={"status": 412, "outcome": None}, free_milli=0)
    assert isinstance(refused(stage), QuotaExhaustedError)


def test_a_blocked_account_is_asked_nothing_until_the_person_connects_it_anew(
    colab: ColabServer, stage: Stage
) -> None:
    """Outcome 5 is for good: also for later processes."""
    colab.set_account(refuse={"status": 200, "outcome": 5})
    with pytest.raises(RejectedError, match="blocked"):
        stage.start("s-no")
    asked = len(colab.requests)
    later: Any = stage.make(stage.home)
    for call in (later.offers, later.quota, lambda: later.find("s-no")):
        with pytest.raises(RejectedError, match="blocked"):
            call()
    assert len(colab.requests) == asked
    forget_block(stage.home, "colab-cli")
    assert later.offers()
    later.close()


@pytest.mark.parametrize("fault", ["accept_then_5xx", "accept_then_cut"])
def test_a_runtime_that_came_with_an_error_is_given_back(
    colab: ColabServer, stage: Stage, fault: str
) -> None:
    """It was assigned, nobody knows its name, and nobody would ever end it."""
    request = stage.adapter.render(stage.launch("s-cut"))
    colab.set_faults(**{fault: {"value": True, "times": 1, "only": ["assign"]}})
    with pytest.raises(AdapterError):
        stage.adapter.start(request)
    assert posts(colab) == 1
    assert stage.adapter.find("s-cut") is None
    assert colab.endpoints() == []


def test_a_card_that_the_program_cannot_name_is_given_back(
    colab: ColabServer, stage: Stage
) -> None:
    """The program dies of it and leaves the runtime running."""
    colab.set_faults(wrong_card="Tesla Q9")
    assert isinstance(refused(stage), NoCapacityError)
    assert colab.endpoints() == []


def test_an_unknown_word_in_the_list_hides_no_session(colab: ColabServer, stage: Stage) -> None:
    """`colab sessions` dies of it; we observe and stop all the same. No secret and no log stays behind."""
    stage.adapter.entrust(lambda: {"KEY": "canary-of-the-store"})  # type: ignore[attr-defined]
    ref = stage.start("s-odd")
    colab.set_faults(unknown_word="Z9")
    seen = stage.adapter.observe([ref])[ref]
    assert (seen.state, seen.card) == (PlatformState.RUNNING, "Z9")
    left = [path for path in (stage.home / "colab").rglob("*") if path.is_file()]
    words = {path.name for path in left if not path.is_symlink()}
    assert not words & {"colab.log", "launch.zip", "cell.py", "s-odd.jsonl"}
    token = next(iter(colab.tokens))
    for path in left:
        if not path.is_symlink():
            assert token.encode() not in path.read_bytes()
            assert b"canary-of-the-store" not in path.read_bytes()
    assert b"canary-of-the-store" not in (colab.folder / "requests.jsonl").read_bytes()
    assert "keep-alive" not in {heard.operation for heard in colab.requests}
    stage.adapter.stop(ref)
    until(lambda: not colab.endpoints(), seconds=30)


def test_a_start_that_was_killed_half_way_leaves_no_runtime(
    colab: ColabServer, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the runtime and its agent: the next process gives it back, by the notes alone."""
    request = stage.adapter.render(stage.launch("s-half"))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    adapter: Any = stage.adapter
    monkeypatch.setattr(adapter._starts, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        stage.adapter.start(request)
    assert len(colab.endpoints()) == 1
    later = stage.make(stage.home)
    assert later.find("s-half") is None
    assert colab.endpoints() == []
    later.close()


def test_a_sign_in_that_has_ended_is_renewed_by_the_program_into_the_person_s_own_file(
    colab: ColabServer, stage: Stage
) -> None:
    """No copy is kept; a sign-in that cannot be renewed asks for a person, and never for input."""
    path = colab.folder / "token.json"
    colab.sign_in(path, valid_s=-10)
    before = json.loads(path.read_bytes())["token"]
    assert stage.adapter.offers()
    assert json.loads(path.read_bytes())["token"] != before
    link = stage.home / "colab" / "colab-cli" / "renew" / ".config" / "colab-cli" / "token.json"
    assert os.readlink(link) == str(path)
    colab.sign_in(path, valid_s=-10, refresh="1//revoked")
    with pytest.raises(AuthError):
        stage.adapter.offers()
    colab.sign_in(path)


def test_quota_is_told_in_3600ths_of_a_compute_unit(colab: ColabServer, stage: Stage) -> None:
    """Milli-units as text, a refill as text or number, no rate while nothing runs; a paid balance goes first."""
    for text in (True, False):
        colab.set_account(free_milli=12_000, refill_text=text)
        (report,) = stage.adapter.quota() or ()
        assert report.limit_s == 12 * 3600
        assert report.resets_at is not None
    colab.set_account(balance=7.5)
    (report,) = stage.adapter.quota() or ()
    assert (report.limit_s, report.resets_at) == (7.5 * 3600, None)


def test_the_faults_of_the_line_have_names(colab: ColabServer, stage: Stage) -> None:
    """429 with its wait, 5xx, an ended sign-in: each is the error that the orchestrator knows."""
    for faults, kind in (
        ({"throttle_s": {"value": 7, "only": ["ccu-info"]}}, RateLimitedError),
        ({"throttle_s": None, "fail": 500}, UnreachableError),
        ({"fail": None, "expired_token": True}, AuthError),
    ):
        colab.set_faults(**faults)
        with pytest.raises(kind) as caught:
            stage.adapter.offers()
        if isinstance(caught.value, RateLimitedError):
            assert caught.value.retry_after_s == 7


def test_only_paid_offers_and_starts_nothing_without_a_balance(
    colab: ColabServer, stage: Stage
) -> None:
    """Also when the balance went away between the offer and the start."""
    request = stage.adapter.render(stage.launch("s-paid"))
    adapter: Any = stage.adapter
    adapter.only_paid = True
    assert adapter.offers() == []
    with pytest.raises(QuotaExhaustedError, match="only_paid"):
        adapter.start(request)
    assert posts(colab) == 0


def test_what_cannot_be_meant_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    """The program takes an unknown card for an A100; rules that were not accepted stop everything."""

    def make(**options: Any) -> ColabAdapter:
        return ColabAdapter.from_options("c", options, home=tmp_path, clock=SystemClock())

    with pytest.raises(ConfigError, match="not accepted"):
        make()
    with pytest.raises(ConfigError, match="rtx"):
        make(**ACCEPTED, gpus=["rtx"])
    with pytest.raises(MissingSDKError):
        make(**ACCEPTED, cli=str(tmp_path / "nothing"))._program.path()
    assert make(**ACCEPTED).observe([SessionRef("x")])[SessionRef("x")].state is PlatformState.GONE


def test_an_answer_that_never_comes_ends_by_our_own_deadline(
    colab: ColabServer, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request of ours and each call of the program has its own limit."""
    monkeypatch.setattr(account, "_REQUEST_S", 1.0)
    adapter: Any = stage.make(stage.home)
    colab.set_faults(hang_s={"value": 5, "only": ["ccu-info", "list"]})
    for call in (adapter.offers, adapter.quota):
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="does not answer"):
            call()
        assert time.monotonic() - began < 4
    findings = {finding.name: finding for finding in adapter.diagnose("drive:x")}
    assert findings["quota"].ok is False
    adapter.close()


def test_what_ends_a_session_is_the_list_and_what_lies_is_given_back_all_the_same(
    colab: ColabServer, stage: Stage
) -> None:
    """A runtime that was killed and is said to run: we repeat what Colab says, and a stop takes it off the list."""
    ref = stage.start("s-lies")
    colab.set_faults(lies_running=True)
    assert colab.lose() == 1
    assert stage.state(ref) is PlatformState.RUNNING
    stage.adapter.stop(ref)
    assert stage.state(ref) is PlatformState.ENDED


def test_another_card_in_silence_is_seen_at_the_first_look(
    colab: ColabServer, stage: Stage
) -> None:
    """An L4 for a T4: the start goes through, and the observation names what came."""
    colab.set_faults(wrong_card="L4")
    ref = stage.start("s-swap")
    assert stage.adapter.observe([ref])[ref].card == "L4"


@pytest.mark.parametrize("broken", ["forgotten", "failing", "missing"])
def test_a_stop_does_not_need_the_program(colab: ColabServer, stage: Stage, broken: str) -> None:
    """It says "not found" with exit code 0 for what it forgot, dies, or is uninstalled: the account's list decides."""
    ref = stage.start("s-stop")
    adapter: Any = stage.adapter
    if broken == "forgotten":
        place = stage.home / "colab" / "colab-cli" / "s-stop"
        (place / ".config" / "colab-cli" / "sessions.json").write_text("{}")
    elif broken == "failing":
        adapter._program.cli = "/bin/false"
    else:
        adapter._program.cli = str(stage.home / "nothing")
    assert len(colab.endpoints()) == 1
    adapter.stop(ref)
    assert colab.endpoints() == []
    assert stage.state(ref) is PlatformState.ENDED


def test_tidying_gives_back_what_runs_and_forgets_the_session(
    colab: ColabServer, stage: Stage
) -> None:
    """Twice is fine, and so is a session that nobody knows."""
    ref = stage.start("s-tidy")
    adapter: Any = stage.adapter
    adapter.tidy(ref)
    assert colab.endpoints() == []
    assert not (stage.home / "colab" / "colab-cli" / "s-tidy").exists()
    adapter.tidy(ref)
    adapter.tidy(SessionRef("../.."))
    assert stage.state(ref) is PlatformState.GONE


def test_output_that_came_short_is_shown_as_far_as_it_came_and_goes_on_later(
    colab: ColabServer, stage: Stage
) -> None:
    """A log shorter than what was read before shows nothing twice; when the runtime is gone, what was read stays."""
    ref = stage.start("s-short")
    page = until(lambda: (p := stage.adapter.logs(ref)).text and p, seconds=30)
    (log,) = (colab.folder / "machines").glob("gpu-*/content/freegpu-s-short.log")
    whole = log.read_bytes()
    log.write_bytes(whole[:5])
    short = stage.adapter.logs(ref, cursor=page.cursor)
    assert (short.text, short.cursor) == ("", page.cursor)
    log.write_bytes(whole + b"more\n")
    assert stage.adapter.logs(ref, cursor=page.cursor).text == "more\n"
    colab.lose()
    assert stage.adapter.logs(ref).text == whole.decode() + "more\n"


def test_what_is_wrong_is_found_with_a_hint(colab: ColabServer, stage: Stage) -> None:
    """Good: program, credentials, quota, clock; bad: a clock that is off, no balance, a block, a program that is gone."""
    adapter: Any = stage.adapter

    def found(store: str = "drive:x") -> dict[str, Any]:
        return {finding.name: finding for finding in adapter.diagnose(store)}

    assert [finding.ok for finding in found().values()] == [True] * 4
    assert "compute units are left" in found()["quota"].detail
    assert "mount no Drive" in found("folder:/content/drive")["store"].detail
    colab.set_faults(skew_s=900)
    assert found()["clock"].ok is False
    assert found()["clock"].hint
    colab.set_faults(skew_s=None)
    adapter.only_paid = True
    assert found()["quota"].ok is None
    assert "only_paid" in found()["quota"].detail
    path = colab.folder / "token.json"
    kept = path.read_bytes()
    path.unlink()
    assert "has no sign-in" in found()["credentials"].detail
    path.write_bytes(kept)
    adapter._account.block()
    assert "blocked" in found()["account"].detail
    forget_block(stage.home, "colab-cli")
    adapter._program.cli = str(stage.home / "nothing")
    assert "is not there" in found()["installed"].detail


def test_a_runtime_that_freegpu_did_not_start_is_never_touched(
    colab: ColabServer, stage: Stage
) -> None:
    """The user's own notebook of the same account lives through start, stop, a sweep, and tidying."""
    colab.set_account(most=3)
    mine = stage.folder / "mine"
    adapter: Any = stage.adapter
    mine.mkdir()
    adapter._program.run(mine, ["new", "-s", "notebook", "--gpu", "T4"])
    (theirs,) = colab.endpoints()
    ref = stage.start("s-ours")
    assert len(colab.endpoints()) == 2
    adapter.settle()
    adapter.tidy(ref)
    assert colab.endpoints() == [theirs]


def test_a_sign_in_that_ends_while_a_runtime_is_asked_for_leaves_nothing(
    colab: ColabServer, stage: Stage
) -> None:
    """A 401 to the assignment is a sign-in, not a refusal: nothing is in doubt, and nothing runs."""
    request = stage.adapter.render(stage.launch("s-expired"))
    colab.set_faults(expired_token={"value": True, "only": ["assign"]})
    with pytest.raises(AuthError):
        stage.adapter.start(request)
    colab.set_faults(expired_token=None)
    adapter: Any = stage.adapter
    assert not adapter.unsettled()
    assert colab.endpoints() == []
