"""What goes wrong at Kaggle while sessions are started, looked at and ended, and what was reported of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import PlatformState, SessionRef, WindowKind
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
from freegpu.testing.kaggle_server import KaggleServer
from freegpu.testing.suites import Stage
from freegpu.testing.suites.stage import until
from tests.contract.kaggle import canary, made, server, stage

__all__ = ["server", "stage"]

CANARY = "canary-of-the-store"


def sent(server: KaggleServer, operation: str) -> list[dict[str, Any]]:
    return [heard.json for heard in server.requests if heard.operation == operation]


# --- starting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["accept_then_5xx", "accept_then_cut"])
def test_a_start_that_was_accepted_without_an_answer_is_not_repeated(
    stage: Stage, server: KaggleServer, fault: str
) -> None:
    """A push to a slug that is there starts a second session: it goes out once, and its slug is asked for."""
    request = stage.adapter.render(stage.launch("s-1"))
    server.set_faults(**{fault: {"value": True, "only": ["SaveKernel"], "times": 1}})
    with pytest.raises(UnreachableError):
        stage.adapter.start(request)
    ref = Patient(stage.adapter, SystemClock()).start(request)
    stage.remember(ref)
    assert ref == "ada/freegpu-s-1"
    assert stage.adapter.find("s-1") == ref
    assert len(sent(server, "SaveKernel")) == len(server.kernels) == 1


@pytest.mark.parametrize(
    ("fault", "value", "kind"),
    [
        ("refuse_quota", True, QuotaExhaustedError),
        ("refuse_sessions", True, NoCapacityError),
        ("refuse_capacity", True, NoCapacityError),
        ("throttle_s", 7, RateLimitedError),
        ("expired_token", True, AuthError),
        ("fail", 503, UnreachableError),
        ("fail", 403, AuthError),
        ("fail", 400, RejectedError),
    ],
)
def test_a_refused_start_is_called_by_its_name_and_leaves_nothing(
    stage: Stage, server: KaggleServer, fault: str, value: Any, kind: type[AdapterError]
) -> None:
    """Refusals come with 200 and an `error`, for which Kaggle's own program exits 0."""
    request = stage.adapter.render(stage.launch("s-1"))
    server.set_faults(**{fault: {"value": value, "only": ["SaveKernel"]}})
    with pytest.raises(AdapterError) as caught:
        stage.adapter.start(request)
    assert isinstance(caught.value, kind)
    assert not server.kernels
    # after a 503 the kernel may run, and it needs its inputs
    assert bool(server.data.known) == (kind is UnreachableError)
    if isinstance(caught.value, RateLimitedError):
        assert caught.value.retry_after_s == 7
    assert not list((stage.home / "kaggle").glob("*.seed"))


def test_the_third_session_is_busy_and_not_failed(server: KaggleServer, tmp_path: Path) -> None:
    """Two batch sessions with cards an account; the message names a number of sessions, not hours."""
    stage = Stage(tmp_path / "cap", made)
    stage.start("s-1")
    stage.start("s-2")
    # what Kaggle itself says then, when what runs was not to be seen before
    server.instead["ListKernels"] = {"kernels": []}
    with pytest.raises(NoCapacityError, match="Maximum batch GPU session count of 2 reached"):
        stage.start("s-3")
    assert set(server.kernels) == {"freegpu-s-1", "freegpu-s-2"}
    assert set(server.data.known) == {"ada/freegpu-s-1", "ada/freegpu-s-2"}
    stage.close()


def test_a_kernel_that_would_run_without_its_inputs_is_no_launch(
    stage: Stage, server: KaggleServer
) -> None:
    """An answer with invalid sources comes when it runs already: it is deleted, with its dataset."""
    server.invalid = True
    with pytest.raises(RejectedError, match="did not attach dataset ada/freegpu-s-1"):
        stage.start("s-1")
    assert not server.kernels
    assert not server.data.known


@pytest.mark.parametrize(
    "kind",
    ["invalidCompetitionSources", "invalidKernelSources", "invalidModelSources", "invalidDatasetSources"],
)  # fmt: skip
def test_every_list_of_invalid_sources_is_read(
    stage: Stage, server: KaggleServer, kind: str
) -> None:
    """And lists that are null are none."""
    others = {"invalidDatasetSources": None, "invalidTags": None, "error": None, "ref": None}
    server.instead["SaveKernel"] = {**others, kind: ["x/y"]}
    with pytest.raises(RejectedError, match="x/y"):
        stage.start("s-1")
    server.instead["SaveKernel"] = others
    assert stage.start("s-1") == "ada/freegpu-s-1"


def test_a_kernel_that_lands_at_another_slug_is_ended(stage: Stage, server: KaggleServer) -> None:
    """The slug comes from the title; found under no name that we know, it would use the quota up unseen."""
    server.drift = "-2"
    with pytest.raises(RejectedError, match="put the session at 'freegpu-s-1-2'"):
        stage.start("s-1")
    assert not server.kernels


@pytest.mark.parametrize(
    "key", ["s-1", "s-" + "x" * 40, "s-" + "x" * 61, "a--b", "a-", "n-c-" + "-" * 20, "0"]
)
def test_every_session_id_has_a_slug_that_its_title_leads_to(
    stage: Stage, server: KaggleServer, key: str
) -> None:
    """6 to 50 signs, in the form that Kaggle makes of a title; a short id stands in it as it is."""
    ref = stage.start(key)
    (slug,) = server.kernels
    assert ref == f"ada/{slug}"
    assert 6 <= len(slug) <= 50
    assert key in slug or len(key) > 42 or "--" in key or key.endswith("-")
    assert stage.adapter.find(key) == ref
    assert stage.state(ref) in (PlatformState.RUNNING, PlatformState.STARTING)


def test_every_field_of_a_kernel_is_said(stage: Stage, server: KaggleServer) -> None:
    """Defaults differ between Kaggle's program and its pages: privacy and internet are left to none of them."""
    stage.start("s-1")
    (told,) = sent(server, "SaveKernel")
    assert told["isPrivate"] is True
    assert told["enableInternet"] is False
    assert told["machineShape"] == "NvidiaTeslaT4"
    assert told["kernelType"] == "script"
    assert told["newTitle"] == "freegpu s 1"
    assert told["slug"] == "ada/freegpu-s-1"
    assert "id" not in told
    assert "dockerImage" not in told
    # ours is the deadline; theirs, which is not dependable, comes later and still below the maximum
    ours = stage.launch("s-1").profile.limit_s
    assert ours is not None
    assert ours < told["sessionTimeoutSeconds"] < 12 * 3600
    assert "cores" not in told["text"]
    assert len(told["text"]) < 1 << 20
    assert all(dataset.private for dataset in server.data.known.values())


def test_a_tpu_is_asked_for_without_an_image_and_a_processor_in_its_place_is_seen(
    server: KaggleServer, tmp_path: Path
) -> None:
    """An image pin beats the shape, and a retired shape becomes a processor: the kernel ends at once, with a code."""
    stage = Stage(tmp_path / "tpu", made)
    offer = next(offer for offer in stage.adapter.offers() if offer.card == "tpu-v5e-8")
    assert (offer.pool, offer.count) == ("tpu", 1)
    assert offer.session_limit_s is not None
    assert offer.session_limit_s < 9 * 3600
    for key, place in (("s-1", "TpuV5E8"), ("s-2", "")):
        launch = replace(stage.launch(key), offer=offer)
        server.silently["TpuV5E8"] = place
        ref = stage.start_request(stage.adapter.render(launch))
        assert sent(server, "SaveKernel")[-1]["machineShape"] == "TpuV5E8"
        assert "dockerImage" not in sent(server, "SaveKernel")[-1]
        if place:
            until(lambda: stage.pids("s-1"))
            continue
        until(lambda ref=ref: stage.state(ref) is PlatformState.ENDED)  # type: ignore[misc]
        seen = stage.adapter.observe([ref])[ref]
        assert "a TPU was asked for" in seen.detail
        assert seen.reason == "wrong_card"
        assert "wrong machine" in stage.adapter.logs(ref).text
    stage.close()


def test_the_wrong_card_is_seen_by_the_machine_alone(stage: Stage, server: KaggleServer) -> None:
    """Kaggle does not tell which card came: the adapter claims none, and the agent's hello says it."""
    server.set_faults(wrong_card="Tesla P100-PCIE-16GB")
    ref = stage.start("s-1")
    assert stage.adapter.observe([ref])[ref].card == ""
    (kernel,) = server.kernels.values()
    assert "P100" in (server.machines.place(kernel.machine) / "nvidia-cards").read_text()


def test_a_processor_is_asked_for_by_name(server: KaggleServer, tmp_path: Path) -> None:
    """With no shape and no word about accelerators Kaggle gave cards, and charged them."""
    stage = Stage(tmp_path / "cpu", made)
    offer = next(offer for offer in stage.adapter.offers() if offer.card == "CPU")
    stage.start_request(stage.adapter.render(replace(stage.launch("s-1"), offer=offer)))
    (told,) = sent(server, "SaveKernel")
    assert (told["enableGpu"], told["enableTpu"]) == (False, False)
    (kernel,) = server.kernels.values()
    assert server.pool(kernel) == ""
    stage.close()


# --- datasets ---------------------------------------------------------------------------------------------


def test_a_dataset_is_waited_for_before_a_kernel_is_given_it(
    stage: Stage, server: KaggleServer
) -> None:
    """One that is still being processed is not attached, and the kernel runs without it."""
    server.data.pending_s = 0.9
    ref = stage.start("s-1")
    assert len(sent(server, "GetDatasetStatus")) > 2
    assert all(h.get("datasetVersionNumber") == 1 for h in sent(server, "ListDatasetFiles"))
    until(lambda: stage.pids("s-1"))
    assert stage.state(ref) is PlatformState.RUNNING


@pytest.mark.parametrize("how", ["lost", "failed"])
def test_a_dataset_that_is_not_there_in_the_end_is_said_to_be(
    stage: Stage, server: KaggleServer, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the private total the creation succeeds, and there is nothing (kaggle-cli#284)."""
    monkeypatch.setattr("freegpu.adapters.kaggle.parcel.PATIENCE_S", 0.5)
    server.data.lose = how == "lost"
    server.data.status = "FAILED" if how == "failed" else ""
    with pytest.raises(RejectedError, match="does not hold what was sent") as caught:
        stage.start("s-1")
    assert "room" in caught.value.hint
    assert not server.kernels
    assert not server.data.known


def test_an_upload_that_breaks_off_goes_on_where_it_was(stage: Stage, server: KaggleServer) -> None:
    """503 in the middle: the server is asked how far it got."""
    launch = stage.launch("s-1")
    (Path(launch.tree) / "big").write_bytes(bytes(range(256)) * 4000)
    server.data.breaks = [300_000, 100_000]
    stage.start_request(stage.adapter.render(launch))
    puts = [h for h in server.requests if h.operation == "upload"]
    assert [h.headers.get("content-range", "")[:13] for h in puts] == [
        "", "bytes */10242", "bytes 300000-", "bytes */10242", "bytes 400000-",
    ]  # fmt: skip
    until(lambda: stage.pids("s-1"))


def test_an_upload_that_expired_is_unreachable_and_begun_anew(
    stage: Stage, server: KaggleServer
) -> None:
    """404 for its address: the next try asks for another one."""
    server.data.breaks, server.data.forgetful = [10], True
    with pytest.raises(UnreachableError, match="did not arrive"):
        stage.start("s-1")
    assert stage.start("s-1")


def test_no_credentials_go_to_a_signed_address(stage: Stage, server: KaggleServer) -> None:
    """Uploads and downloads are by address alone, and the address is not ours to trust with a token."""
    ref = stage.start("s-1")
    (stage.folder / "leave").touch()
    until(lambda: stage.state(ref) is PlatformState.ENDED)
    stage.adapter.collect(ref, stage.folder / "home")
    for heard in server.requests:
        assert ("authorization" in heard.headers) == (heard.operation not in ("upload", "output"))


def test_what_goes_in_is_named_so_that_kaggle_does_not_unpack_it(
    stage: Stage, server: KaggleServer
) -> None:
    """Archives are unpacked there; one file that is none."""
    stage.start("s-1")
    (dataset,) = server.data.known.values()
    assert list(dataset.files) == ["freegpu-seed.bin"]


def test_an_agent_that_is_too_large_for_a_source_goes_into_the_dataset(
    stage: Stage, server: KaggleServer
) -> None:
    """A megabyte is the most that a source may have."""
    agent = stage.folder / "big-agent.py"
    agent.write_text(stage.stand_in.read_text() + "#" + "x" * (1 << 20))
    stage.start("s-1", agent=agent)
    (told,) = sent(server, "SaveKernel")
    assert len(told["text"]) < 20_000
    assert sorted(server.data.known["ada/freegpu-s-1"].files) == [
        "freegpu-agent.bin",
        "freegpu-seed.bin",
    ]
    until(lambda: stage.pids("s-1"))


# --- secrets ----------------------------------------------------------------------------------------------


def test_credentials_of_the_store_leave_only_when_that_was_allowed(
    server: KaggleServer, tmp_path: Path
) -> None:
    """Neither sealed, where none are needed, nor to a kernel without the word of the user."""
    stage = Stage(tmp_path / "no", lambda home: made(home, carry="store"))
    stage.adapter.entrust(lambda: {"AWS_SECRET_ACCESS_KEY": CANARY})  # type: ignore[attr-defined]
    with pytest.raises(RejectedError, match="may not leave this machine") as caught:
        stage.start("s-1")
    assert "--credentials private-dataset" in caught.value.hint
    stage.close()
    sealed = Stage(tmp_path / "sealed", made)
    sealed.adapter.entrust(lambda: {"AWS_SECRET_ACCESS_KEY": CANARY})  # type: ignore[attr-defined]
    sealed.start("s-2")
    sealed.close()
    assert not canary(server, CANARY)


def test_allowed_credentials_arrive_sealed_and_in_a_private_file(
    server: KaggleServer, tmp_path: Path
) -> None:
    """Readable with the session's key only, in no request as they are; gone with tidy(), which repeats in silence."""
    given = {"carry": "store", "credentials": "private-dataset"}
    stage = Stage(tmp_path / "stage", lambda home: made(home, **given))
    stage.adapter.entrust(lambda: {"AWS_SECRET_ACCESS_KEY": CANARY})  # type: ignore[attr-defined]
    agent = stage.folder / "agent.py"
    agent.write_text(_SPY.replace("REPO", repr(sys.path)))
    archive = stage.folder / "agent.pyz"
    _zip(agent, archive)
    ref = stage.start("s-1", agent=archive)
    until(lambda: stage.state(ref) is PlatformState.ENDED)
    text = stage.adapter.logs(ref).text
    assert "mode 600" in text
    assert CANARY[::-1] in text  # it read them: said backwards, so that the log is no leak either
    assert not canary(server, CANARY)
    assert not canary(server, server.key)
    assert canary(server, server.token) - {"IntrospectToken"} == {
        h.operation for h in server.requests if "authorization" in h.headers
    } - {"IntrospectToken"}  # fmt: skip
    for heard in server.requests:
        assert server.token not in f"{heard.path}{heard.query}"
        assert server.token.encode() not in heard.body or heard.operation == "IntrospectToken"
    assert list(server.data.known["ada/freegpu-s-1"].files) == ["freegpu-access.bin"]
    assert not list((stage.home / "kaggle").glob("*.access"))
    assert sent(server, "SaveKernel")[0]["enableInternet"] is True
    stage.adapter.tidy(ref)  # type: ignore[attr-defined]
    assert not server.data.known
    assert stage.state(ref) is PlatformState.GONE
    stage.adapter.tidy(ref)  # type: ignore[attr-defined]
    stage.close()


_SPY = """
import json, os, sys
path = sys.argv[2].partition("=")[2]
print("mode %o" % (os.stat(path).st_mode & 0o777))
with open(path) as file:
    print(json.load(file)["secrets"]["AWS_SECRET_ACCESS_KEY"][::-1])
os.unlink(path)
"""


def _zip(main: Path, into: Path) -> None:
    """A real agent's archive with another main."""
    import zipfile

    from freegpu.orchestrator import agent_archive

    built, _ = agent_archive.build(into.parent / "built")
    with zipfile.ZipFile(built) as source, zipfile.ZipFile(into, "w") as target:
        for name in source.namelist():
            data = main.read_bytes() if name == "__main__.py" else source.read(name)
            target.writestr(name, data)


# --- looking ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({}, PlatformState.STARTING),
        ({"status": "QUEUED"}, PlatformState.STARTING),
        ({"status": "NEW_SCRIPT"}, PlatformState.STARTING),
        ({"status": "RUNNING"}, PlatformState.RUNNING),
        ({"status": "running"}, PlatformState.RUNNING),
        ({"status": "COMPLETE"}, PlatformState.ENDED),
        ({"status": "ERROR", "failureMessage": None}, PlatformState.ENDED),
        ({"status": "CANCEL_REQUESTED"}, PlatformState.ENDED),
        ({"status": "cancelAcknowledged"}, PlatformState.ENDED),
        ({"status": "HIBERNATING"}, PlatformState.UNKNOWN),
        ({"status": 17}, PlatformState.UNKNOWN),
        ({"status": None}, PlatformState.UNKNOWN),
        ([], PlatformState.UNKNOWN),
    ],
)  # fmt: skip
def test_a_state_is_read_from_what_came_and_an_unknown_word_says_nothing(
    stage: Stage, server: KaggleServer, told: Any, state: PlatformState
) -> None:
    """Kaggle's own client dies of new words (KeyError) and numbers (AttributeError), and {} means queued."""
    server.instead["GetKernelSessionStatus"] = told
    ref = SessionRef("ada/freegpu-s-1")
    assert stage.adapter.observe([ref])[ref].state is state


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Your notebook exceeded the maximum execution time", "session_expired"),
        ("The run timed out", "session_expired"),
        ("Your weekly GPU quota is used up", "quota_exhausted"),
        ("Process exited with code 1", ""),
        ("Your notebook tried to allocate more memory than is available", ""),
    ],
)
def test_why_a_session_ended_is_read_from_the_text(
    stage: Stage, server: KaggleServer, message: str, reason: str
) -> None:
    """ERROR covers everything: the reason is in the failureMessage or nowhere."""
    server.instead["GetKernelSessionStatus"] = {"status": "ERROR", "failureMessage": message}
    ref = SessionRef("ada/freegpu-s-1")
    seen = stage.adapter.observe([ref])[ref]
    assert (seen.reason, seen.detail) == (reason, message)


@pytest.mark.parametrize("how", ["500", "html", "denied"])
def test_a_broken_status_of_one_is_not_an_end(stage: Stage, server: KaggleServer, how: str) -> None:
    """For three days everybody's status was a 500 (kaggle-cli#1053): unknown, and nothing follows from it."""
    ref = stage.start("s-1")
    if how == "html":
        server.html.add("GetKernelSessionStatus")
    else:
        status = {"500": 500, "denied": 403}[how]
        server.set_faults(fail={"value": status, "only": ["GetKernelSessionStatus"]})
    seen = stage.adapter.observe([ref, SessionRef("ada/freegpu-other"), SessionRef("x")])
    assert seen[ref].state is PlatformState.UNKNOWN
    assert seen[ref].detail
    assert seen[SessionRef("x")].state is PlatformState.GONE
    server.html.clear()
    server.set_faults(fail=None)
    until(lambda: stage.state(ref) is PlatformState.RUNNING)


def test_a_status_that_lies_is_passed_on_and_a_queued_one_is_starting(
    stage: Stage, server: KaggleServer
) -> None:
    """A finished run that counts as active for ever exists (#473): its silence is told elsewhere."""
    server.queue_s = 60
    ref = stage.start("s-1")
    assert stage.state(ref) is PlatformState.STARTING
    server.queue_s = 0
    (stage.folder / "leave").touch()
    until(lambda: stage.state(ref) is PlatformState.ENDED)
    server.set_faults(lies_running=True)
    assert stage.state(ref) is PlatformState.RUNNING
    server.set_faults(lies_running=None, unknown_word="SLEEPING")
    assert stage.adapter.observe([ref])[ref].raw == "SLEEPING"


def test_the_label_of_the_version_is_said_everywhere(stage: Stage, server: KaggleServer) -> None:
    """Without it Kaggle answers for the newest version; "1" in the place of "v1" is not found."""
    ref = stage.start("s-1")
    stage.state(ref)
    stage.adapter.logs(ref)
    stage.adapter.find("s-1")
    for operation in ("GetKernelSessionStatus", "ListKernelSessionOutput"):
        assert sent(server, operation)
        assert {told["versionLabel"] for told in sent(server, operation)} == {"v1"}


def test_a_silent_platform_costs_one_time_limit_and_prints_nothing(
    stage: Stage, server: KaggleServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kaggle's client has no time limits at all; a pause of ours does not lengthen it."""
    server.set_faults(hang_s=6)
    begun = time.monotonic()
    with pytest.raises(UnreachableError):
        stage.adapter.offers()
    assert time.monotonic() - begun < 4.5
    server.set_faults(hang_s=None)
    assert capsys.readouterr() == ("", "")


def test_kaggle_itself_is_never_imported(stage: Stage, server: KaggleServer) -> None:
    """Its import signs in, prints help, and needs `six`, which it does not declare; kagglesdk is imported on use."""
    program = (
        "import sys; import freegpu.adapters.kaggle; from freegpu.adapters import registry;"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('kaggle', 'kagglesdk', 'requests')))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout == "[]\n"
    stage.adapter.offers()
    assert "kaggle" not in sys.modules


@pytest.mark.parametrize("answer", ["html", "null", "list", "coded"])
def test_an_answer_that_makes_no_sense_is_unreachable(
    stage: Stage, server: KaggleServer, answer: str
) -> None:
    """Throttling shows as a page in HTML with 200; an error may come with 200 and a code of its own."""
    operation = "GetAcceleratorQuotaStatistics"
    told = {"null": None, "list": [1], "coded": {"code": 503, "message": "busy"}}
    if answer == "html":
        server.html.add(operation)
    else:
        server.instead[operation] = told[answer]
    with pytest.raises(UnreachableError):
        stage.adapter.quota()


# --- quota and offers -------------------------------------------------------------------------------------


def test_quota_is_the_account_s_own_with_what_is_reserved(
    stage: Stage, server: KaggleServer
) -> None:
    """30 hours are 108000 s and not 21600 (the SDK drops days); the time of return is in UTC."""
    server.spent["gpu"] = 7200.0
    gpu, tpu = stage.adapter.quota() or ()
    assert (gpu.pool, gpu.used_s, gpu.limit_s) == ("gpu", 7200.0, 108000.0)
    assert (tpu.pool, tpu.limit_s) == ("tpu", 72000.0)
    assert gpu.resets_at is not None
    assert gpu.resets_at.isoformat().endswith("T00:00:00+00:00")
    assert gpu.resets_at.weekday() == 5
    stage.start("s-1")
    gpu = (stage.adapter.quota() or ())[0]
    assert 7200.0 + 3600.0 <= gpu.used_s < 7200.0 + 3630.0


@pytest.mark.parametrize(
    ("row", "used", "limit"),
    [
        ({"timeUsed": None, "totalTimeAllowed": "3600s"}, 0.0, 3600.0),
        ({"timeUsed": "1.5s", "minimumTimeAllowed": "7200s"}, 1.5, 7200.0),
        ({"timeUsed": "10s", "timeReserved": "5.250s"}, 15.25, None),
    ],
)
def test_quota_with_holes_is_read_as_far_as_it_goes(
    stage: Stage, server: KaggleServer, row: dict[str, Any], used: float, limit: float | None
) -> None:
    """Kaggle's program dies of a null timeUsed; a moment without a zone is UTC, also with nanoseconds."""
    when = "2026-12-05T00:00:00.123456789"
    server.instead["GetAcceleratorQuotaStatistics"] = {
        "quotaRefreshTime": when, "gpuQuota": row, "tpuQuota": None,
    }  # fmt: skip
    (report,) = stage.adapter.quota() or ()
    assert (report.used_s, report.limit_s) == (used, limit)
    assert report.resets_at is not None
    assert report.resets_at.isoformat() == "2026-12-05T00:00:00+00:00"


def test_offers_are_what_the_account_has(stage: Stage, server: KaggleServer) -> None:
    """Two T4 in one session, a TPU, a processor; never a P100. What is not allowed is not offered."""
    offers = {offer.card: offer for offer in stage.adapter.offers()}
    assert list(offers) == ["T4", "tpu-v5e-8", "CPU"]
    assert (offers["T4"].count, offers["T4"].pool, offers["T4"].rate) == (2, "gpu", 1.0)
    assert [slot.gpus for slot in stage.launch("s-1").profile.slots] == [("0",), ("1",)]
    assert stage.adapter.capabilities.max_concurrent == 2
    assert stage.adapter.windows["gpu"].kind is WindowKind.FIXED_WEEKLY
    server.allowed["tpu"] = 0.0
    assert [offer.card for offer in stage.adapter.offers()] == ["T4", "CPU"]
    server.set_faults(fail=503)
    with pytest.raises(UnreachableError):
        stage.adapter.offers()


# --- ending -----------------------------------------------------------------------------------------------


def test_stopping_deletes_the_kernel_and_tidying_its_dataset(
    stage: Stage, server: KaggleServer
) -> None:
    """There is no cancel: the id that it wants is told by no call."""
    ref = stage.start("s-1")
    stage.adapter.stop(ref)
    assert not server.kernels
    assert not sent(server, "CancelKernelSession")
    assert server.data.known
    stage.adapter.tidy(ref)  # type: ignore[attr-defined]
    assert not server.data.known


def test_a_kernel_that_stays_after_its_deletion_is_told(stage: Stage, server: KaggleServer) -> None:
    """A deleted notebook was shown as running for a day (#937): it is looked for again later."""
    ref = stage.start("s-1")
    server.ghosts = True
    with pytest.raises(UnreachableError, match="is still there"):
        stage.adapter.tidy(ref)  # type: ignore[attr-defined]
    server.ghosts = False
    server.instead["DeleteKernel"] = {"errorMessage": "not today"}
    with pytest.raises(UnreachableError, match="did not delete ada/freegpu-s-1: not today"):
        stage.adapter.stop(ref)


@pytest.mark.parametrize("ref", ["ada/thesis", "ada/freegpu", "thesis", "", "ada/../freegpu-x"])
def test_nothing_is_touched_that_does_not_bear_our_name(
    stage: Stage, server: KaggleServer, ref: str
) -> None:
    """A handle that points at somebody's notebook is none."""
    stage.adapter.stop(SessionRef(ref))
    stage.adapter.tidy(SessionRef(ref))  # type: ignore[attr-defined]
    assert not server.requests


def test_a_session_ends_by_its_limit_and_says_so(server: KaggleServer, tmp_path: Path) -> None:
    """Killed without notice, as far as anybody knows."""
    server.limit_s = 1.5
    stage = Stage(tmp_path / "short", made)
    ref = stage.start("s-1")
    until(lambda: stage.state(ref) is PlatformState.ENDED)
    assert stage.adapter.observe([ref])[ref].reason == "session_expired"
    stage.close()


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"carry": "both"},
        {"credentials": "yes"},
        {"endpoint": "http://example.com"},
        {"endpoint": "ftp://127.0.0.1"},
        {"timeout_s": 0},
        {"timeout_s": "5"},
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """Credentials go to no address without https, but on this machine."""
    with pytest.raises(ConfigError):
        made(tmp_path, **options)


def test_the_request_shows_no_path_of_the_agent_in_its_source(stage: Stage) -> None:
    """What is sent is the source; the paths are for this side, and --dry-run shows them."""
    payload = stage.adapter.render(stage.launch("s-1")).payload
    assert str(stage.folder) not in json.dumps(payload["save"])
