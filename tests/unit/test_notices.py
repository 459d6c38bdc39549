"""Which notices follow from what happened: each thing once, in words, and nothing twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from freegpu.adapters.base import Window, WindowKind
from freegpu.orchestrator import notices
from freegpu.orchestrator.model import AuditEvent, Balance, FigureSource
from freegpu.orchestrator.notices import (
    AGAIN_S,
    EACH,
    MOST,
    TRIES,
    JobFacts,
    Notice,
    NoticeKind,
    Queued,
    State,
    Watched,
)

NOW = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
JOBS = {
    "k3x9f2": JobFacts(name="mnist", attempts=3, lost_s=90.0, took_s=3 * 3600.0),
    "q81mzt": JobFacts(name="lora", has_checkpoint=True),
}


def event(action: str, job: str = "k3x9f2", message: str = "", **more: Any) -> AuditEvent:
    fields: dict[str, Any] = {"id": 1, "at": NOW, "attempt": f"{job}-1", "session": "s-abc"}
    fields |= {"platform": "colab", "data": {}, **more}
    return AuditEvent(action=action, job=job, message=message, **fields)


def lost(job: str = "k3x9f2", **more: Any) -> AuditEvent:
    data = {"exit_code": None, "run_s": 1.0, "lost_s": 60.0}
    given = {"message": "lost: its agent has been silent", "data": data, **more}
    return event("attempt.ended", job, **given)


def test_a_success_says_how_long_it_took_and_how_to_get_the_outputs() -> None:
    """One notice, by the job."""
    [notice] = notices.from_events([event("job.succeeded")], JOBS)
    assert notice.kind is NoticeKind.SUCCEEDED
    assert notice.title == "mnist has succeeded"
    assert notice.body == (
        "3 h after it was submitted, over 3 attempts, 1 min 30 s of work had to be done again."
        " Its outputs: freegpu pull k3x9f2"
    )


def test_a_failure_says_why_and_one_after_a_retry_is_news_again() -> None:
    """Keyed by its attempt; the same line read twice is one notice."""
    first = event("job.failed", message="the command failed 2 times; retry.failures is 1")
    again = event("job.failed", message="the command failed 2 times", attempt="k3x9f2-4")
    found = notices.from_events([first, first, again], JOBS)
    assert [notice.key for notice in found] == ["failed:k3x9f2:k3x9f2-1", "failed:k3x9f2:k3x9f2-4"]
    assert found[0].body.startswith("the command failed 2 times; retry.failures is 1. What it")


def test_a_lost_session_is_one_notice_with_all_its_jobs() -> None:
    """T4 x2 that dies takes two jobs with it; each line says where its job goes on from."""
    [notice] = notices.from_events([lost(), lost("q81mzt")], JOBS)
    assert notice.key == "lost:s-abc"
    assert notice.title == "a session on colab was lost"
    assert "mnist (k3x9f2) goes on from the beginning, 1 min of work lost" in notice.body
    assert "lora (q81mzt) goes on from its checkpoint" in notice.body


@pytest.mark.parametrize(
    "line",
    [
        lost(message="session_expired: the time was up"),
        lost(message="preempted"),
        lost(message="lost: its results never reached the store whole", data={"exit_code": 0}),
        lost(session=""),
        event("attempt.ended", message="cancelled: by the user"),
        event("job.cancelled"),
        event("session.ended", message="lost: its agent has ended"),
    ],
    ids=lambda line: f"{line.action} {line.message}",
)
def test_ends_that_are_nobodys_loss_are_no_news(line: AuditEvent) -> None:
    """An end in time, a wish of the user's, an end that the agent reported itself."""
    assert notices.from_events([line], JOBS) == []


# --- quotas ----------------------------------------------------------------------------------------------


def balance(kind: WindowKind, used_s: float, resets_at: datetime | None, **more: Any) -> Balance:
    fields: dict[str, Any] = {"platform": "kaggle", "account": "me", "pool": "gpu"}
    fields |= {"window": Window(kind=kind, limit_s=36000.0), "limit_s": 36000.0}
    fields |= {"reserved_s": 0.0, "source": FigureSource.LEDGER, **more}
    return Balance(used_s=used_s, resets_at=resets_at, **fields)


def follow(*steps: tuple[datetime, Balance]) -> list[list[Notice]]:
    """The notices of each look, one after another."""
    seen: dict[str, Watched] = {}
    found = []
    for at, step in steps:
        told, seen = notices.resets(seen, [step], at)
        found.append(told)
    return found


def test_a_weekly_reset_is_told_once_if_the_quota_had_been_used() -> None:
    """Also if nobody looked for a while, and not again at the next look."""
    week = timedelta(days=7)
    reset = NOW + HOUR
    found = follow(
        (NOW, balance(WindowKind.FIXED_WEEKLY, 9000.0, reset)),
        (NOW + 5 * HOUR, balance(WindowKind.FIXED_WEEKLY, 0.0, reset + week)),
        (NOW + 6 * HOUR, balance(WindowKind.FIXED_WEEKLY, 0.0, reset + week)),
        (NOW + week + 2 * HOUR, balance(WindowKind.FIXED_WEEKLY, 0.0, reset + 2 * week)),
    )
    assert [len(told) for told in found] == [0, 1, 0, 0]
    assert found[1][0].title == "the quota of kaggle is back"
    assert found[1][0].body == "10 h can be used now, until 2026-12-09 13:00 UTC."


def test_a_reset_moment_that_is_rounded_differently_is_the_same_reset() -> None:
    """A platform that answers some seconds apart each time must not ring each time."""
    reset = NOW + HOUR
    wobble = timedelta(seconds=40)
    found = follow(
        (NOW, balance(WindowKind.FIXED_WEEKLY, 9000.0, reset)),
        (NOW + HOUR - wobble, balance(WindowKind.FIXED_WEEKLY, 9000.0, reset + wobble)),
        (NOW + 2 * HOUR, balance(WindowKind.FIXED_WEEKLY, 0.0, reset + timedelta(days=7))),
    )
    assert [len(told) for told in found] == [0, 0, 1]


def test_a_rolling_quota_is_back_when_half_of_it_is_after_it_was_spent() -> None:
    """Bit by bit is no news; nor is use that never came near the limit."""
    spent, some, half = 35000.0, 30000.0, 17000.0
    steps = [(NOW, balance(WindowKind.ROLLING, used, None)) for used in (some, half, spent)]
    steps += [(NOW + HOUR, balance(WindowKind.ROLLING, used, None)) for used in (some, half, half)]
    assert [len(told) for told in follow(*steps)] == [0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("kind", [WindowKind.PREPAID, WindowKind.PER_SESSION])
def test_what_never_comes_back_is_never_told(kind: WindowKind) -> None:
    """Prepaid hours do not reset."""
    assert follow((NOW, balance(kind, 36000.0, None)), (NOW + HOUR, balance(kind, 0.0, None))) == [
        [],
        [],
    ]


def test_a_limit_that_nobody_publishes_has_no_reset() -> None:
    """There is nothing that could be said about it."""
    unknown = balance(WindowKind.ROLLING, 36000.0, NOW + HOUR, limit_s=None)
    assert follow((NOW, unknown), (NOW + 9 * HOUR, unknown)) == [[], []]


# --- invitations -----------------------------------------------------------------------------------------


def test_the_same_invitation_comes_at_most_once_in_six_hours() -> None:
    """However often it is wanted, and however its sentence changes."""
    told: dict[str, tuple[datetime, float]] = {}
    times = []
    for minute in range(0, 13 * 60, 5):
        at = NOW + timedelta(minutes=minute)
        words = f"mnist ends {minute} min sooner"
        wanted = notices.attended("colab", "https://example.org/nb", words, worth=3600.0)
        found, told = notices.invitations(told, [wanted], at)
        times += [minute for _ in found]
    assert times == [0, AGAIN_S / 60, 2 * AGAIN_S / 60]


@pytest.mark.parametrize(
    ("worth", "again"), [(3599.0, False), (3601.0, False), (7200.0, True), (1800.0, True)]
)
def test_an_invitation_comes_sooner_when_what_it_buys_changes_by_a_lot(
    worth: float, again: bool
) -> None:
    """By a factor of two, either way; other platforms have their own."""
    told = {"colab": (NOW - HOUR, 3600.0)}
    wanted = [
        notices.attended("colab", "", "click", worth=worth),
        notices.attended("saturn", "", "click"),
    ]
    found, after = notices.invitations(told, wanted, NOW)
    assert [notice.key for notice in found] == ["attended:colab"] * again + ["attended:saturn"]
    assert after["colab"] == ((NOW, worth) if again else told["colab"])


# --- the queue -------------------------------------------------------------------------------------------


def notice(kind: NoticeKind, number: int = 0) -> Notice:
    return Notice(kind=kind, key=f"{kind}:{number}", title=f"job {number} x", body="b")


def test_each_address_gets_the_kinds_that_it_wants() -> None:
    """A kind that nobody wants is not kept."""
    wants = {"a": (NoticeKind.FAILED,), "b": (NoticeKind.FAILED, NoticeKind.LOST)}
    new = [notice(kind) for kind in (NoticeKind.LOST, NoticeKind.QUOTA, NoticeKind.FAILED)]
    queue = notices.queued(State(), new, wants)
    assert {entry.notice.kind: entry.to for entry in queue} == {
        NoticeKind.LOST: ("b",),
        NoticeKind.FAILED: ("a", "b"),
    }


def test_a_whole_matrix_that_ends_at_once_is_one_notice() -> None:
    """Up to a few are told as they are; what waits is not queued twice; the queue has an end."""
    wants = {"a": tuple(NoticeKind)}
    few = [notice(NoticeKind.SUCCEEDED, n) for n in range(EACH)]
    many = [notice(NoticeKind.SUCCEEDED, n) for n in range(200)]
    queue = notices.queued(State(), few, wants)
    assert len(queue) == EACH
    assert notices.queued(State(queue=queue), few, wants) == queue
    [digest] = notices.queued(State(), many, wants)
    assert digest.notice.title == "200 jobs have succeeded"
    assert "job 7 x and 192 more" in digest.notice.body
    full = State(queue=tuple(Queued(notice=each, to=("a",)) for each in many))
    assert len(notices.queued(full, [notice(NoticeKind.LOST)], wants)) == MOST


def test_a_notice_is_tried_so_often_and_ever_later_and_only_where_it_did_not_arrive() -> None:
    """Five tries over seven and a half minutes, then it is given up."""
    entry: Queued | None = Queued(notice=notice(NoticeKind.LOST), to=("a", "b"))
    at, waits = NOW, []
    while entry is not None:
        entry = notices.put_off(entry, ["b"], at)
        if entry is not None:
            assert entry.to == ("b",)
            assert entry.after is not None
            waits.append((entry.after - at).total_seconds())
            at = entry.after
    assert waits == [30.0, 60.0, 120.0, 240.0]
    assert len(waits) == TRIES - 1
    done = Queued(notice=notice(NoticeKind.LOST), to=("a",))
    assert notices.put_off(done, [], NOW) is None


def test_what_is_remembered_survives_the_ledger_and_nonsense_is_refused() -> None:
    """Written and read back it is the same; equal states are equal texts."""
    state = State(
        cursor=41,
        queue=(Queued(notice=notice(NoticeKind.QUOTA), to=("a",), tries=2, after=NOW),),
        invited={"colab": (NOW, 3600.0)},
        windows={"kaggle/gpu": Watched(resets_at=NOW, used=True)},
    )
    assert State.from_json(state.to_json()) == state
    assert State.from_json(state.to_json()).to_json() == state.to_json()
    for text in ("", "[]", "{}", '{"cursor": null}', '{"cursor":1,"queue":[{}]}'):
        with pytest.raises(ValueError):
            State.from_json(text)
