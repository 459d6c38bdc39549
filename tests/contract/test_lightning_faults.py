"""What goes wrong at Lightning, and what was reported of it, each with what freegpu makes of it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import PlatformState, SessionRef
from freegpu.adapters.lightning import LightningAdapter
from freegpu.adapters.wrappers import Patient
from freegpu.clock import SystemClock
from freegpu.errors import (
    AdapterError,
    AuthError,
    ConfigError,
    NoCapacityError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    UnreachableError,
)
from freegpu.testing.lightning_server import LightningServer
from freegpu.testing.platform_server import FAULTS, Heard, Reply
from freegpu.testing.suites import Stage
from freegpu.testing.suites.stage import until
from tests.contract.lightning import made, server, stage

__all__ = ["server", "stage"]

CANARY = "canary-of-the-store"
#: faults under which offers still come, so that a start can be asked for again
_HARMLESS = set(FAULTS) - {"fail", "hang_s", "expired_token"}


def sent(server: LightningServer, operation: str) -> int:
    return sum(heard.operation == operation for heard in server.requests)


@pytest.mark.parametrize("fault", ["accept_then_5xx", "accept_then_cut"])
def test_a_start_that_was_accepted_without_an_answer_is_not_repeated(
    stage: Stage, server: LightningServer, fault: str
) -> None:
    """The SDK made two jobs of it. Here the POST goes out once, and the session is found."""
    request = stage.adapter.render(stage.launch("s-1"))
    server.set_faults(**{fault: {"value": True, "times": 1}})
    with pytest.raises(UnreachableError):
        stage.adapter.start(request)
    assert sent(server, "create_job") == 1
    ref = Patient(stage.adapter, SystemClock()).start(request)
    stage.remember(ref)
    assert stage.adapter.find("s-1") == ref
    assert sent(server, "create_job") == len(server.jobs) == 1


def test_a_second_job_under_a_suffixed_name_is_swept_up(
    stage: Stage, server: LightningServer
) -> None:
    """Whoever sent it: both burn credits. The older one is kept, the other is stopped; a longer key is not touched."""
    ref = stage.start("s-1")
    other = stage.start("s-1-2")
    body = json.loads(next(h.body for h in server.requests if h.operation == "create_job"))
    stage.adapter.calls.ask("POST", "/v1/projects/prj-1/jobs", body=body)  # type: ignore[attr-defined]
    twin = next(job for job in server.jobs.values() if job["name"] == "freegpu-s-1-3")
    assert stage.adapter.find("s-1") == ref
    until(lambda: not server.machines.alive(twin["id"]))
    assert stage.state(ref) is PlatformState.RUNNING
    assert stage.state(other) is PlatformState.RUNNING
    assert stage.adapter.find("s-1-2") == other


@pytest.mark.parametrize(
    ("fault", "value", "kind"),
    [
        ("refuse_quota", True, QuotaExhaustedError),
        ("refuse_sessions", True, NoCapacityError),
        ("refuse_capacity", True, NoCapacityError),
        ("throttle_s", 7, RateLimitedError),
        ("expired_token", True, AuthError),
        ("fail", 503, UnreachableError),
        ("fail", 403, RejectedError),
    ],
)
def test_a_refused_start_is_called_by_its_name(
    stage: Stage, server: LightningServer, fault: str, value: Any, kind: type[AdapterError]
) -> None:
    """By the body first: a 400 may mean money, machines or a mistake."""
    request = stage.adapter.render(stage.launch("s-1"))
    server.set_faults(**{fault: {"value": value, "only": ["create_job"]}})
    with pytest.raises(kind) as caught:
        stage.adapter.start(request)
    assert type(caught.value) is kind
    assert not server.jobs
    if isinstance(caught.value, RateLimitedError):
        assert caught.value.retry_after_s == 7
    # what was entrusted to it does not stay behind; after a 503 it may be in use
    assert bool(server.studios) == (kind is UnreachableError)


def test_a_card_that_the_plan_does_not_allow_is_refused_with_the_platform_s_words(
    server: LightningServer, tmp_path: Path
) -> None:
    """L4 stands in the list and answers 403 (reported 2026-09-25)."""
    stage = Stage(tmp_path / "l4", lambda home: made(home, machines=["L4"]))
    with pytest.raises(RejectedError, match="403: this machine is not available on your plan"):
        stage.start("s-1")
    stage.close()


def test_a_silent_platform_costs_one_time_limit(stage: Stage, server: LightningServer) -> None:
    """The SDK sends twelve times and takes minutes."""
    ref = stage.start("s-1")
    before = sent(server, "list_jobs")
    server.set_faults(hang_s=4)
    begun = time.monotonic()
    with pytest.raises(UnreachableError):
        stage.adapter.observe([ref])
    assert time.monotonic() - begun < 3.5
    server.set_faults(hang_s=None)
    assert sent(server, "list_jobs") == before + 1


@pytest.mark.parametrize(("fault", "kind"), [(503, UnreachableError), (401, AuthError)])
def test_an_error_of_the_status_is_not_an_end(
    stage: Stage, server: LightningServer, fault: int, kind: type[AdapterError]
) -> None:
    """The SDK says "does not exist ... did you delete it?" to any error."""
    ref = stage.start("s-1")
    server.set_faults(fail=fault)
    with pytest.raises(kind):
        stage.adapter.observe([ref])
    server.set_faults(fail=None)
    assert stage.state(ref) is PlatformState.RUNNING


def test_an_unknown_word_says_nothing(stage: Stage, server: LightningServer) -> None:
    """The SDK takes it for pending, or raises KeyError; the word is kept."""
    ref = stage.start("s-1")
    server.set_faults(unknown_word="IMAGE_BUILDING")
    seen = stage.adapter.observe([ref])[ref]
    assert (seen.state, seen.raw) == (PlatformState.UNKNOWN, "IMAGE_BUILDING")


def test_an_outage_is_not_an_empty_list_of_machines(stage: Stage, server: LightningServer) -> None:
    """The SDK swallows every exception there."""
    server.set_faults(fail={"value": 503, "only": ["accelerators"]})
    with pytest.raises(UnreachableError):
        stage.adapter.offers()


def test_offers_have_the_platform_s_prices_and_only_what_is_to_be_had(
    server: LightningServer, tmp_path: Path
) -> None:
    """Sold out and closed to the plan: not offered. Priced on demand, since spot may cost more."""
    adapter = made(tmp_path, machines=["T4", "T4x4", "L4", "H100", "CPU"])
    server.full.add("lit-l4-1")
    shapes = {(offer.card, offer.count): offer for offer in adapter.offers()}
    assert set(shapes) == {("T4", 1), ("T4", 4), ("CPU", 1)}
    assert shapes["T4", 1].rate == 0.55
    # 5 credits carry 4 x T4 at 2.2 an hour for 2.27 h, of which the start takes 3 minutes
    assert shapes["T4", 4].session_limit_s == 133 * 60
    adapter.close()
    usual = made(tmp_path)
    assert [(offer.card, offer.count) for offer in usual.offers()] == [("T4", 1), ("CPU", 1)]
    usual.close()


def test_the_largest_balance_counts_and_each_source_is_shown(
    stage: Stage, server: LightningServer
) -> None:
    """Reports contradict each other about which is right; the others were 0.0, or lagged."""
    server.wrong_balance = {"user_balance": 0.0, "memberships": 0.0}
    server.set_faults(fail={"value": 503, "only": ["account_balance"]})
    (report,) = stage.adapter.quota() or ()
    assert report.limit_s == pytest.approx(5 * 3600)
    findings = {f.name: f for f in stage.adapter.diagnose("s3://b")}  # type: ignore[attr-defined]
    assert "5.00 credits by the project balance" in findings["balance"].detail
    assert "user 0.00" in findings["balance"].detail
    assert "membership 0.00 (unchanged for " in findings["balance"].detail
    assert not [finding for finding in findings.values() if finding.ok is False]


def test_nothing_starts_that_the_balance_cannot_carry_to_a_checkpoint(
    server: LightningServer, tmp_path: Path
) -> None:
    """18 minutes of a T4 take 0.165 credits; paid use beyond it only by name and ceiling."""
    stage = Stage(tmp_path / "poor", made)
    request = stage.adapter.render(stage.launch("s-1"))
    server.credits = 0.16
    assert {offer.card for offer in stage.adapter.offers()} == {"CPU"}
    with pytest.raises(QuotaExhaustedError, match=r"0\.16 credits are left .* takes 0\.1[67]"):
        stage.adapter.start(request)
    assert not sent(server, "create_studio")
    rich = made(tmp_path, paid={"allow": "paid-use", "ceiling": 2.0})
    stage.remember(rich.start(request))
    rich.close()
    stage.close()


@pytest.mark.parametrize(
    "paid", [True, {"allow": "yes", "ceiling": 5.0}, {"allow": "paid-use"}, {"allow": "paid-use", "ceiling": 0}]
)  # fmt: skip
def test_paid_use_is_allowed_by_name_and_ceiling_alone(tmp_path: Path, paid: Any) -> None:
    """Anything else is a mistake, and mistakes cost nothing."""
    with pytest.raises(ConfigError):
        made(tmp_path, paid=paid)


def test_a_session_that_ran_out_of_funds_says_so(
    stage: Stage, server: LightningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed without notice; the reason is the quota, so the job moves on from its checkpoint."""
    request = stage.adapter.render(stage.launch("s-1"))
    adapter = stage.adapter
    assert isinstance(adapter, LightningAdapter)
    admitted = adapter._admit("s-1", "T4", 1, 3600)
    # between the look and the start others used the balance up but for two seconds
    monkeypatch.setattr(adapter, "_admit", lambda *_: admitted)
    server.credits = 2 * 0.55 / 3600
    ref = stage.start_request(request)
    until(lambda: stage.state(ref) is PlatformState.ENDED)
    seen = stage.adapter.observe([ref])[ref]
    assert seen.reason == "quota_exhausted"
    assert "OUT_OF_FUNDS" in seen.detail
    assert "provisional" in seen.detail


def test_the_command_is_bounded_by_our_own_time_limit(stage: Stage) -> None:
    """max_runtime is none (SDK issue 77); interruptible is always said, and False."""
    payload = stage.adapter.render(stage.launch("s-1")).payload
    assert "exec timeout -s TERM -k 60 " in payload["command"]
    assert payload["interruptible"] is False


def test_secrets_arrive_in_a_private_file_and_nowhere_else(
    stage: Stage, server: LightningServer
) -> None:
    """In one upload to storage; in no command, environment, address or telemetry. Gone with tidy()."""
    stage.adapter.entrust(lambda: {"AWS_SECRET_ACCESS_KEY": CANARY})  # type: ignore[attr-defined]
    ref = stage.start("s-1")
    (job,) = server.jobs.values()
    access = server.machines.place(job["id"]) / "home/freegpu/s-1/access.json"
    until(lambda: stage.pids("s-1"))
    assert access.stat().st_mode & 0o777 == 0o600
    assert json.loads(access.read_text()) == {"secrets": {"AWS_SECRET_ACCESS_KEY": CANARY}}
    where = {h.operation for h in server.requests if CANARY.encode() in h.body}
    assert where == {"put_blob"}
    for line in (server.folder / "requests.jsonl").read_text().splitlines():
        heard = json.loads(line)
        around = json.dumps([heard["path"], heard["query"], heard["headers"]])
        assert CANARY not in around
        assert server.key not in json.dumps([heard["path"], heard["query"], heard["body"]])
        assert heard["operation"] not in ("command_history", "")
        # the credential goes to the platform alone, and not to the storage behind its signed addresses
        assert ("authorization" in heard["headers"]) == (heard["operation"] != "put_blob")
        if CANARY in heard["body"]:
            assert heard["operation"] == "put_blob"
            assert json.loads(heard["body"]) == {"secrets": {"AWS_SECRET_ACCESS_KEY": CANARY}}
    stage.adapter.tidy(ref)  # type: ignore[attr-defined]
    assert not server.studios
    assert not server.jobs
    assert stage.state(ref) is PlatformState.GONE
    stage.adapter.tidy(ref)  # type: ignore[attr-defined]


def test_tidying_touches_nothing_of_the_user_s(stage: Stage, server: LightningServer) -> None:
    """A handle that points at somebody else's Studio and job leaves both."""
    stage.start("s-1")
    (job,), (studio,) = server.jobs.values(), server.studios.values()
    job["name"] = studio["name"] = "thesis"
    stage.adapter.tidy(SessionRef(f"{job['id']}.{studio['id']}"))  # type: ignore[attr-defined]
    assert server.jobs
    assert server.studios
    job["name"] = "freegpu-s-1"


def test_a_start_that_was_interrupted_leaves_one_studio(
    stage: Stage, server: LightningServer
) -> None:
    """The Studio of the first try is used by the second."""
    request = stage.adapter.render(stage.launch("s-1"))
    server.set_faults(fail={"value": 503, "only": ["blobs"], "times": 1})
    with pytest.raises(UnreachableError):
        stage.adapter.start(request)
    stage.start_request(request)
    assert len(server.studios) == 1


def test_a_status_that_lies_and_a_truncated_log_are_passed_on_as_told(
    stage: Stage, server: LightningServer
) -> None:
    """That a session ended is known from its silence in the store; the adapter says what the platform says."""
    ref = stage.start("s-1")
    pid = until(lambda: stage.pids("s-1"))[0]
    until(lambda: "stand-in" in stage.adapter.logs(ref).text)
    server.set_faults(lies_running=True, truncate_output=3)
    os.kill(pid, signal.SIGKILL)
    (job,) = server.jobs.values()
    until(lambda: not server.machines.alive(job["id"]))
    assert stage.state(ref) is PlatformState.RUNNING
    assert len(stage.adapter.logs(ref).text) <= 4


def test_a_wrong_clock_is_found(stage: Stage, server: LightningServer) -> None:
    """The date of the platform's answers against ours."""
    server.set_faults(skew_s=600)
    findings = {f.name: f for f in stage.adapter.diagnose("s3://b")}  # type: ignore[attr-defined]
    assert findings["clock"].ok is False


def test_credentials_are_looked_for_where_lightning_s_tools_keep_them(
    stage: Stage, server: LightningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file when the environment has none; a user id alone is no login; none at all is told with what to do."""
    monkeypatch.delenv("LIGHTNING_API_KEY")
    findings = stage.adapter.diagnose("")  # type: ignore[attr-defined]
    assert (findings[-1].name, findings[-1].ok) == ("credentials", False)
    assert "LIGHTNING_API_KEY" in findings[-1].hint
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"user_id": "usr-1", "api_key": server.key}))
    monkeypatch.setenv("LIGHTNING_CREDENTIAL_PATH", str(path))
    assert stage.adapter.offers()
    monkeypatch.setenv("LIGHTNING_AUTH_TOKEN", "wrong-token")
    with pytest.raises(AuthError) as caught:
        stage.adapter.offers()
    assert "wrong-token" not in f"{caught.value.message}{caught.value.hint}"


def test_a_teamspace_that_is_not_there_is_told_with_those_that_are(
    server: LightningServer, tmp_path: Path
) -> None:
    """And the user is told how to choose."""
    adapter = made(tmp_path, teamspace="ada/other")
    with pytest.raises(RejectedError, match="there is none of lab") as caught:
        adapter.offers()
    adapter.close()
    assert "--teamspace" in caught.value.hint


def test_the_wrong_card_is_seen_by_the_machine_alone(stage: Stage, server: LightningServer) -> None:
    """The platform does not tell which card came: the adapter claims none, and the agent's hello says it."""
    server.set_faults(wrong_card="Tesla P100-PCIE-16GB")
    ref = stage.start("s-1")
    assert stage.adapter.observe([ref])[ref].card == ""
    (job,) = server.jobs
    assert "P100" in (server.machines.place(job) / "nvidia-cards").read_text()


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_no_fault_ends_in_anything_but_an_adapter_error(
    stage: Stage, server: LightningServer, fault: str
) -> None:
    """Every switch that a loopback platform has, at every call; afterwards one session, in good health."""
    ref = stage.start("s-1")
    values: dict[str, Any] = {"fail": 500, "hang_s": 2.2, "throttle_s": 3, "skew_s": 900}
    server.set_faults(**{fault: values.get(fault, True)})
    request = stage.adapter.render(stage.launch("s-1")) if fault in _HARMLESS else None
    calls: list[Callable[[], object]] = [
        stage.adapter.offers,
        stage.adapter.quota,
        lambda: stage.adapter.find("s-1"),
        lambda: stage.adapter.observe([ref]),
        lambda: stage.adapter.logs(ref),
    ]
    if request is not None:
        calls.append(partial(stage.adapter.start, request))
    if fault == "hang_s":
        calls = calls[:2]  # each costs a time limit
    failed: list[AdapterError] = []
    for call in calls:
        try:
            call()
        except AdapterError as error:
            failed.append(error)
    assert server.key not in str([(error.message, error.hint) for error in failed])
    assert bool(failed) == (fault in ("fail", "hang_s", "expired_token"))
    server.set_faults(**{fault: None})
    assert stage.state(ref) is PlatformState.RUNNING
    assert stage.adapter.find("s-1") == ref
    assert len(server.jobs) == 1


def test_what_an_unanswered_start_left_is_found_by_the_key_alone(
    stage: Stage, server: LightningServer
) -> None:
    """Nobody retried it, the ledger has no handle, this home knows nothing: the Studio with the credentials goes."""
    stage.adapter.entrust(lambda: {"AWS_SECRET_ACCESS_KEY": CANARY})  # type: ignore[attr-defined]
    request = stage.adapter.render(stage.launch("s-1"))
    server.set_faults(fail={"value": 503, "only": ["create_job"]})
    with pytest.raises(UnreachableError):
        stage.adapter.start(request)
    server.set_faults(fail=None)
    (files,) = server.files.values()
    assert CANARY.encode() in files["freegpu/s-1/access.json"]
    assert stage.adapter.find("s-1") is None
    stranger = stage.make(stage.folder / "another home")
    stranger.tidy(SessionRef("s-1"))  # type: ignore[attr-defined]
    stranger.close()
    assert not server.studios
    assert not server.files
    stage.adapter.tidy(SessionRef("s-1"))  # type: ignore[attr-defined]


def test_a_job_that_lists_showed_too_late_is_tidied_by_the_key(
    stage: Stage, server: LightningServer
) -> None:
    """The answer was cut, the list lagged, find() said no: what burns credits all the same is ended and removed."""
    request = stage.adapter.render(stage.launch("s-1"))
    server.set_faults(accept_then_cut={"value": True, "times": 1})
    with pytest.raises(UnreachableError):
        stage.adapter.start(request)
    (job,) = server.jobs
    server.unlisted.add(job)
    assert stage.adapter.find("s-1") is None
    server.unlisted.clear()
    stage.adapter.tidy(SessionRef("s-1"))  # type: ignore[attr-defined]
    assert not server.jobs
    assert not server.studios
    until(lambda: not server.machines.alive(job))


def test_every_tidying_sweeps_studios_that_no_start_will_use(
    stage: Stage, server: LightningServer
) -> None:
    """Of ours, older than an hour, with no job from them. The user's, a young one, and one in use stay."""
    used = stage.start("s-used")
    over = stage.start("s-over")
    in_use = used.partition(".")[2]
    old = "2026-01-01T00:00:00Z"
    server.studios[in_use]["createdAt"] = old
    for id_, name, created in (
        ("cs-left", "freegpu-s-left", old),
        ("cs-odd", "freegpu-s-odd", "yesterday"),
        ("cs-thesis", "thesis", old),
        ("cs-young", "freegpu-s-young", server._moment()),
    ):
        server.studios[id_] = {"id": id_, "name": name, "createdAt": created}
        server.files[id_] = {}
    stage.adapter.stop(over)
    until(lambda: stage.state(over) is PlatformState.ENDED)
    stage.adapter.tidy(over)  # type: ignore[attr-defined]
    assert set(server.studios) == {in_use, "cs-odd", "cs-thesis", "cs-young"}
    assert stage.state(used) is PlatformState.RUNNING


def test_a_studio_that_stays_is_told_and_tried_again(
    stage: Stage, server: LightningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripted deletes were reported to say yes and do nothing: it is looked for afterwards."""
    ref = stage.start("s-1")
    stage.adapter.stop(ref)
    until(lambda: stage.state(ref) is PlatformState.ENDED)
    with monkeypatch.context() as patch:
        patch.setattr(server, "_delete_studio", lambda heard, id_: Reply(json={}))
        with pytest.raises(UnreachableError, match="is still there"):
            stage.adapter.tidy(ref)  # type: ignore[attr-defined]
    stage.adapter.tidy(ref)  # type: ignore[attr-defined]
    assert not server.studios


def test_a_job_that_is_restarting_still_runs_and_one_that_lists_omit_is_asked_for(
    stage: Stage, server: LightningServer
) -> None:
    """On its way to an end it still costs; the list lags."""
    ref = stage.start("s-1")
    for word in ("restarting", "complete", "fail", "stopping"):
        server.set_faults(unknown_word=word)
        assert stage.state(ref) is PlatformState.RUNNING
    server.set_faults(unknown_word="deleted")
    assert stage.state(ref) is PlatformState.GONE
    server.set_faults(unknown_word=None)
    server.unlisted.update(server.jobs)
    assert stage.state(ref) is PlatformState.RUNNING


def test_an_answer_that_is_no_json_is_no_answer(
    stage: Stage, server: LightningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A captive portal says 200 to everything; an empty list would be believed."""
    page = Reply(body=b"<html>welcome to the hotel</html>")
    monkeypatch.setattr(server, "_list_jobs", lambda heard, _: page)
    with pytest.raises(UnreachableError, match="not JSON"):
        stage.adapter.find("s-1")
    monkeypatch.setattr(server, "_list_jobs", lambda heard, _: Reply(json={"jobs": "none"}))
    with pytest.raises(UnreachableError, match="has no jobs"):
        stage.adapter.find("s-1")


def test_lists_are_read_to_their_last_page(
    stage: Stage, server: LightningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK stopped at the first page of a folder (issue 109): files were missing, without an error."""
    ref = stage.start("s-1")
    whole = server._list_jobs

    def paged(heard: Heard, _: str) -> Reply:
        if heard.query.get("pageToken") == "more":
            return whole(heard, _)
        return Reply(json={"jobs": [], "nextPageToken": "more"})

    def lines(heard: Heard, _: str) -> Reply:
        first = "pageToken" not in heard.query
        told = {"entries": [{"message": "one" if first else "two"}]}
        return Reply(json={**told, "nextPageToken": "more" if first else ""})

    monkeypatch.setattr(server, "_list_jobs", paged)
    monkeypatch.setattr(server, "_logs", lines)
    assert stage.adapter.find("s-1") == ref
    page = stage.adapter.logs(ref)
    assert (page.text, page.cursor) == ("one\ntwo\n", "2")


def test_machines_of_a_provider_that_was_not_asked_for_are_not_offered(
    stage: Stage, server: LightningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for one that it does not know, the platform answers with AWS's list."""
    spec = {"clusterType": "CLUSTER_TYPE_GLOBAL", "driver": "MACHINE"}
    monkeypatch.setattr(
        server, "_clusters", lambda heard, _: Reply(json={"clusters": [{"id": "c", "spec": spec}]})
    )
    assert stage.adapter.offers() == []


def test_a_platform_that_repeats_the_credentials_is_not_repeated(
    stage: Stage, server: LightningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its words stand in errors, logs and issues; and a redirection takes the credentials nowhere."""
    heard = f"bad request: Bearer {server.key}"
    monkeypatch.setattr(server, "_list_jobs", lambda *_: server.error(400, heard))
    with pytest.raises(RejectedError) as caught:
        stage.adapter.find("s-1")
    assert server.key not in caught.value.message
    assert "***" in caught.value.message
    elsewhere = Reply(status=302, headers={"Location": f"{server.url}/v1/elsewhere"})
    monkeypatch.setattr(server, "_list_jobs", lambda *_: elsewhere)
    with pytest.raises(RejectedError, match="302"):
        stage.adapter.find("s-1")
    assert not [h for h in server.requests if h.path == "/v1/elsewhere"]


def test_sessions_are_never_looked_up_by_name(stage: Stage, server: LightningServer) -> None:
    """The address for that answers 501, and names are suffixed in silence."""
    ref = stage.start("s-1")
    stage.adapter.find("s-1")
    stage.adapter.observe([ref])
    assert not sent(server, "find_job")
