"""Quota windows: what is left at a moment, and when more comes back."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from freegpu.adapters.base import Offer, QuotaReport, Window, WindowKind
from freegpu.jobs.lifecycle import SessionState
from freegpu.orchestrator.model import Entry, EntryKind, FigureSource, Reading, Session
from freegpu.orchestrator.quota import balance, charge_for, refill
from freegpu.orchestrator.reckoning import correction

HOUR = 3600.0
#: a Wednesday
NOW = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)

WEEKLY = Window(kind=WindowKind.FIXED_WEEKLY, limit_s=30 * HOUR)
ROLLING = Window(kind=WindowKind.ROLLING, limit_s=10 * HOUR, period_s=24 * HOUR)
MONTHLY = Window(kind=WindowKind.MONTHLY, limit_s=20 * HOUR)
FIRST_USE = Window(kind=WindowKind.FROM_FIRST_USE, limit_s=5 * HOUR, period_s=24 * HOUR)
PER_SESSION = Window(kind=WindowKind.PER_SESSION, limit_s=4 * HOUR)
PREPAID = Window(kind=WindowKind.PREPAID, limit_s=15 * HOUR)
NONE = Window(kind=WindowKind.NONE)
ALL = [WEEKLY, ROLLING, MONTHLY, FIRST_USE, PER_SESSION, PREPAID, NONE]
LIMITED = [WEEKLY, ROLLING, MONTHLY, FIRST_USE, PREPAID]


def hours(count: float) -> timedelta:
    return timedelta(hours=count)


def entry(kind: EntryKind, at: datetime, hours_: float, session: str = "") -> Entry:
    return Entry(
        id=0,
        at=at,
        kind=kind,
        platform="kaggle",
        account="me",
        pool="gpu",
        session=session,
        amount_s=hours_ * HOUR,
        note="",
    )


def charge(at: datetime, hours_: float, session: str = "") -> Entry:
    return entry(EntryKind.CHARGE, at, hours_, session)


def reading(used: float, as_of: datetime, *, resets_at: datetime | None = None) -> Reading:
    return Reading(
        platform="kaggle",
        account="me",
        pool="gpu",
        used_s=used * HOUR,
        limit_s=None,
        resets_at=resets_at,
        as_of=as_of,
    )


def open_session(session: str, started: datetime, reserved: float, rate: float = 1.0) -> Session:
    offer = Offer(platform="kaggle", account="me", card="T4", pool="gpu", rate=rate)
    return Session(
        id=session,
        platform="kaggle",
        account="me",
        key=session,
        ref="r",
        state=SessionState.LIVE,
        raw_state="",
        reason="",
        card="T4",
        count=1,
        offer=offer,
        card_seen="T4",
        created_at=started,
        started_at=started,
        live_at=started,
        ended_at=None,
        limit_s=9 * HOUR,
        reserved_s=reserved * HOUR,
        charged_s=0.0,
        pool="gpu",
        rate=rate,
        beat_counter=0,
        silent_polls=0,
        polled_at=None,
        inbox_next=1,
        outbox_seen=0,
        our_counter=0,
        beat={},
    )


def left_h(window: Window, entries: list[Entry], now: datetime = NOW, **more: object) -> float:
    told = more.get("reading")
    assert told is None or isinstance(told, Reading)
    left = balance(window, entries, told, (), now).left_s
    assert left is not None
    return round(left / HOUR, 6)


MONDAY = datetime(2026, 11, 30, tzinfo=UTC)
FIRST = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("window", "entries", "now", "left", "resets_at"),
    [
        pytest.param(WEEKLY, [], NOW, 30, MONDAY + hours(168), id="weekly, unused"),
        pytest.param(
            WEEKLY, [charge(NOW - hours(1), 4)], NOW, 26, MONDAY + hours(168), id="weekly"
        ),
        pytest.param(
            WEEKLY,
            [charge(MONDAY - timedelta(microseconds=1), 4)],
            NOW,
            30,
            MONDAY + hours(168),
            id="weekly, used just before the reset",
        ),
        pytest.param(
            WEEKLY, [charge(MONDAY, 4)], NOW, 26, MONDAY + hours(168), id="weekly, at the reset"
        ),
        pytest.param(
            WEEKLY,
            [charge(NOW, 4)],
            MONDAY + hours(168),
            30,
            MONDAY + hours(336),
            id="weekly, now is the reset",
        ),
        pytest.param(
            WEEKLY,
            [charge(NOW, 4)],
            MONDAY + hours(168) - timedelta(microseconds=1),
            26,
            MONDAY + hours(168),
            id="weekly, just before the reset",
        ),
        pytest.param(
            replace(WEEKLY, reset_offset_s=60 * HOUR),
            [charge(NOW - hours(1), 4), charge(NOW, 5)],
            NOW,
            25,
            NOW + hours(168),
            id="weekly, resets on Wednesday noon",
        ),
        pytest.param(
            WEEKLY,
            [
                entry(EntryKind.RESERVE, MONDAY - hours(6), 9, "s"),
                entry(EntryKind.RELEASE, MONDAY + hours(2), 9, "s"),
                charge(MONDAY + hours(2), 8, "s"),
            ],
            NOW,
            28,
            MONDAY + hours(168),
            id="weekly, a session over the reset counts with its part",
        ),
        pytest.param(
            ROLLING,
            [charge(NOW - hours(24), 3), charge(NOW - hours(23), 2)],
            NOW,
            8,
            NOW + hours(1),
            id="rolling, back after exactly one period",
        ),
        pytest.param(
            ROLLING,
            [charge(NOW - hours(24) + timedelta(microseconds=1), 3)],
            NOW,
            7,
            NOW + timedelta(microseconds=1),
            id="rolling, not a moment before",
        ),
        pytest.param(
            MONTHLY,
            [charge(FIRST - hours(1), 9)],
            NOW,
            20,
            datetime(2027, 1, 1, tzinfo=UTC),
            id="monthly, last month's is gone",
        ),
        pytest.param(
            MONTHLY, [charge(FIRST, 9)], NOW, 11, datetime(2027, 1, 1, tzinfo=UTC), id="monthly"
        ),
        pytest.param(
            MONTHLY,
            [charge(datetime(2028, 2, 29, 23, 59, tzinfo=UTC), 9)],
            datetime(2028, 2, 29, 23, 59, 30, tzinfo=UTC),
            11,
            datetime(2028, 3, 1, tzinfo=UTC),
            id="monthly, leap day",
        ),
        pytest.param(FIRST_USE, [], NOW, 5, None, id="from first use, not begun"),
        pytest.param(
            FIRST_USE,
            [charge(NOW - hours(10), 1), charge(NOW - hours(1), 2)],
            NOW,
            2,
            NOW + hours(14),
            id="from first use, all of it comes back together",
        ),
        pytest.param(
            FIRST_USE,
            [charge(NOW - hours(30), 1), charge(NOW - hours(24), 2), charge(NOW - hours(3), 1)],
            NOW,
            4,
            NOW + hours(21),
            id="from first use, a new window begins with the next use",
        ),
        pytest.param(
            FIRST_USE, [charge(NOW - hours(24), 2)], NOW, 5, None, id="from first use, just over"
        ),
        pytest.param(
            FIRST_USE,
            [charge(NOW - hours(48), 2), charge(NOW - hours(24), 3)],
            NOW - timedelta(seconds=1),
            2,
            NOW,
            id="from first use, use at the very end belongs to the next window",
        ),
        pytest.param(PER_SESSION, [charge(NOW, 9)], NOW, 4, None, id="per session"),
        pytest.param(PREPAID, [charge(NOW - hours(9999), 6)], NOW, 9, None, id="prepaid"),
        pytest.param(
            PREPAID, [entry(EntryKind.ADJUST, NOW, -10)], NOW, 25, None, id="prepaid, topped up"
        ),
        pytest.param(
            WEEKLY,
            [charge(NOW, 4), entry(EntryKind.ADJUST, NOW, -1)],
            NOW,
            27,
            MONDAY + hours(168),
            id="adjusted down",
        ),
        pytest.param(
            WEEKLY,
            [entry(EntryKind.ADJUST, NOW, -1)],
            NOW,
            30,
            MONDAY + hours(168),
            id="never more than the limit",
        ),
        pytest.param(
            WEEKLY,
            [entry(EntryKind.READING, NOW, 8)],
            NOW,
            30,
            MONDAY + hours(168),
            id="a reading's line is no use",
        ),
    ],
)
def test_what_is_left_and_when_it_resets(
    window: Window, entries: list[Entry], now: datetime, left: float, resets_at: datetime | None
) -> None:
    """limit - used, by the rules of each window, at the reset instant too."""
    found = balance(window, entries, None, (), now)
    assert found.left_s == pytest.approx(left * HOUR, abs=0.01)
    assert found.resets_at == resets_at


def test_without_a_limit_nothing_is_known_to_be_left() -> None:
    """One's own machine, and a limit that nobody publishes, have no figure."""
    assert balance(NONE, [charge(NOW, 5)], None, (), NOW).left_s is None
    assert balance(replace(WEEKLY, limit_s=None), [], None, (), NOW).left_s is None


def test_an_open_reserve_is_held_until_it_is_released() -> None:
    """reserve lowers what is left, release gives it back, charge takes what was used."""
    reserve = entry(EntryKind.RESERVE, NOW - hours(3), 9, "s")
    release = entry(EntryKind.RELEASE, NOW, 9, "s")
    assert left_h(WEEKLY, [reserve]) == 21
    assert left_h(WEEKLY, [reserve, release]) == 30
    assert left_h(WEEKLY, [reserve, release, charge(NOW, 3, "s")]) == 27


def test_a_reserve_that_is_too_old_for_the_entries_is_taken_from_its_session() -> None:
    """Entries may be cut off in the past; the open session still tells what it holds."""
    held = balance(WEEKLY, [], None, [open_session("s", NOW, 9)], NOW)
    assert held.reserved_s == 9 * HOUR


def test_a_reading_wins_for_what_happened_up_to_its_moment() -> None:
    """Entries up to as_of are replaced by the reading, later ones are added on top."""
    told = reading(10, NOW - hours(2))
    entries = [charge(NOW - hours(5), 1), charge(NOW - hours(2), 1), charge(NOW - hours(1), 2)]
    found = balance(WEEKLY, entries, told, (), NOW)
    assert found.used_s == 12 * HOUR
    assert found.source is FigureSource.LIVE
    assert found.age_s == 2 * HOUR


def test_a_session_that_a_reading_counted_in_part_is_not_counted_twice() -> None:
    """While it runs its reserve shrinks by what the reading has; at its end only the rest is added."""
    reserve = entry(EntryKind.RESERVE, NOW - hours(8), 9, "s")
    told = reading(7, NOW - hours(1))
    running = balance(WEEKLY, [reserve], told, [open_session("s", NOW - hours(8), 9)], NOW)
    assert (running.used_s, running.reserved_s) == (7 * HOUR, 2 * HOUR)
    ended = [reserve, entry(EntryKind.RELEASE, NOW, 9, "s"), charge(NOW, 8, "s")]
    assert balance(WEEKLY, ended, told, (), NOW).used_s == pytest.approx(8 * HOUR)


def test_a_reading_of_the_window_before_says_nothing_about_this_one() -> None:
    """After its reset the ledger counts again, from the platform's own reset moment."""
    resets = NOW - hours(5)
    told = reading(29, NOW - hours(20), resets_at=resets)
    found = balance(WEEKLY, [charge(NOW - hours(6), 3), charge(NOW - hours(1), 2)], told, (), NOW)
    assert found.used_s == 2 * HOUR
    assert found.source is FigureSource.LEDGER
    assert found.resets_at == resets + hours(168)
    at_reset = balance(WEEKLY, [], told, (), resets)
    assert at_reset.used_s == 0
    assert balance(WEEKLY, [], told, (), resets - hours(0.001)).used_s == 29 * HOUR


def test_a_readings_limit_beats_the_declared_one() -> None:
    """What the platform says of its limit is better than a published figure."""
    told = replace(reading(1, NOW), limit_s=42 * HOUR)
    assert balance(WEEKLY, [], told, (), NOW).limit_s == 42 * HOUR


def test_a_rolling_reading_comes_back_as_the_ledger_knows_it_and_no_later_than_a_period() -> None:
    """The part whose moment the ledger knows returns on time; the unknown part after a whole period."""
    told = reading(5, NOW)
    entries = [charge(NOW - hours(20), 2)]
    assert left_h(ROLLING, entries, NOW, reading=told) == 5
    assert left_h(ROLLING, entries, NOW + hours(4), reading=told) == 7
    assert left_h(ROLLING, entries, NOW + hours(23.9), reading=told) == 7
    assert left_h(ROLLING, entries, NOW + hours(24), reading=told) == 10


def test_figures_say_where_they_come_from() -> None:
    """Declared until something was used, then the ledger's."""
    assert balance(WEEKLY, [], None, (), NOW).source is FigureSource.DECLARED
    assert balance(WEEKLY, [charge(NOW, 1)], None, (), NOW).source is FigureSource.LEDGER


def test_a_local_time_zone_changes_nothing() -> None:
    """The clock of the user's country, with its summer time, has no say."""
    from zoneinfo import ZoneInfo

    for moment in (
        NOW,
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),
        datetime(2026, 3, 29, 1, tzinfo=UTC),
    ):
        there = moment.astimezone(ZoneInfo("Europe/Berlin"))
        for window in ALL:
            used = [charge(moment - hours(1), 1)]
            assert balance(window, used, None, (), there) == balance(window, used, None, (), moment)


def test_a_charge_is_seconds_times_rate_and_never_negative() -> None:
    """A platform that counts two cards double is charged double."""
    assert charge_for(100, 2.0) == 200
    assert charge_for(-5, 2.0) == 0


@pytest.mark.parametrize(
    ("window", "entries", "amount", "at"),
    [
        pytest.param(WEEKLY, [charge(NOW, 4)], 26, NOW, id="there is enough"),
        pytest.param(WEEKLY, [charge(NOW, 4)], 27, MONDAY + hours(168), id="weekly reset"),
        pytest.param(WEEKLY, [charge(NOW, 4)], 31, None, id="more than the limit"),
        pytest.param(PREPAID, [charge(NOW, 14)], 2, None, id="prepaid never comes back"),
        pytest.param(MONTHLY, [charge(NOW, 14)], 7, datetime(2027, 1, 1, tzinfo=UTC), id="month"),
        pytest.param(FIRST_USE, [charge(NOW - hours(3), 4)], 2, NOW + hours(21), id="first use"),
        pytest.param(
            ROLLING,
            [charge(NOW - hours(20), 5), charge(NOW - hours(10), 4)],
            6,
            NOW + hours(4),
            id="rolling: enough came back",
        ),
        pytest.param(
            ROLLING,
            [charge(NOW - hours(20), 5), charge(NOW - hours(10), 4)],
            7,
            NOW + hours(14),
            id="rolling: it takes both",
        ),
        pytest.param(
            WEEKLY, [entry(EntryKind.RESERVE, NOW, 9, "s")], 25, None, id="held by a reserve"
        ),
    ],
)
def test_when_that_much_is_left(
    window: Window, entries: list[Entry], amount: float, at: datetime | None
) -> None:
    """The first moment at which the amount is there; None if it never comes by itself."""
    assert refill(window, entries, NOW, amount * HOUR) == at


def test_a_session_comes_back_to_a_rolling_window_as_it_was_used() -> None:
    """Eight hours used evenly return evenly: half of them are back half-way."""
    used = [
        entry(EntryKind.RESERVE, NOW - hours(20), 8, "s"),
        entry(EntryKind.RELEASE, NOW - hours(12), 8, "s"),
        charge(NOW - hours(12), 8, "s"),
    ]
    found = refill(ROLLING, used, NOW, 6 * HOUR)
    assert found is not None
    assert abs(found - (NOW + hours(8))) < timedelta(seconds=0.01)


# --- properties, over many random ledgers -----------------------------------------------------------------


def random_ledger(rng: random.Random) -> tuple[list[Entry], Reading | None, list[Session]]:
    entries: list[Entry] = []
    running: list[Session] = []
    for number in range(rng.randrange(8)):
        start = NOW - hours(rng.uniform(0, 100))
        length, name = rng.choice([0.0, rng.uniform(0, 9)]), f"s{number}"
        reserved = rng.uniform(0, 9)
        entries.append(entry(EntryKind.RESERVE, start, reserved, name))
        end = start + hours(length)
        if end > NOW:
            running.append(open_session(name, start, reserved, rng.choice([1.0, 2.0])))
            continue
        entries.append(entry(EntryKind.RELEASE, end, reserved, name))
        entries.append(charge(end, length * rng.choice([1, 2]), name))
    entries += [
        entry(EntryKind.ADJUST, NOW - hours(rng.uniform(0, 50)), rng.uniform(0, 3))
        for _ in range(rng.randrange(3))
    ]
    told = None
    if rng.random() < 0.5:
        as_of = NOW - hours(rng.uniform(0, 60))
        resets = as_of + hours(rng.uniform(1, 100)) if rng.random() < 0.5 else None
        told = reading(rng.uniform(0, 30), as_of, resets_at=resets)
    return entries, told, running


@pytest.mark.parametrize("seed", range(300))
def test_what_is_left_is_never_negative_nor_more_than_the_limit(seed: int) -> None:
    """Whatever the ledger holds, 0 <= left <= limit."""
    entries, told, running = random_ledger(random.Random(seed))
    for window in ALL:
        found = balance(window, entries, told, running, NOW)
        assert found.used_s >= 0
        assert found.reserved_s >= 0
        if found.limit_s is not None:
            assert found.left_s is not None
            assert 0 <= found.left_s <= found.limit_s


@pytest.mark.parametrize("seed", range(100))
def test_a_release_undoes_its_reserve(seed: int) -> None:
    """Reserving and releasing without use leaves every window as it was."""
    rng = random.Random(seed)
    entries, told, running = random_ledger(rng)
    start, amount = NOW - hours(rng.uniform(0, 200)), rng.uniform(0.1, 9)
    both = [
        *entries,
        entry(EntryKind.RESERVE, start, amount, "new"),
        entry(EntryKind.RELEASE, min(NOW, start + hours(2)), amount, "new"),
    ]
    for window in LIMITED:
        before = balance(window, entries, told, running, NOW)
        after = balance(window, both, told, running, NOW)
        assert (after.used_s, after.reserved_s) == (before.used_s, before.reserved_s)
        assert after.resets_at == before.resets_at


@pytest.mark.parametrize("seed", range(300))
def test_a_refill_is_right_and_not_a_second_late(seed: int) -> None:
    """At the moment that refill tells the amount is left; one second before it was not."""
    rng = random.Random(seed)
    entries, told, running = random_ledger(rng)
    for window in LIMITED:
        assert window.limit_s is not None
        amount = rng.uniform(0, window.limit_s)
        found = refill(window, entries, NOW, amount, reading=told, open_sessions=running)
        if found is None:
            continue
        left = balance(window, entries, told, running, found).left_s
        assert left is not None
        assert left >= amount - 1e-3
        if found > NOW:
            before = balance(window, entries, told, running, found - timedelta(seconds=1)).left_s
            assert before is not None
            assert before < amount or found - timedelta(seconds=1) < NOW


@pytest.mark.parametrize("seed", range(200))
def test_a_refill_that_never_comes_does_not_come(seed: int) -> None:
    """Where refill says None, no hour of the next forty days has the amount."""
    rng = random.Random(seed)
    entries, told, running = random_ledger(rng)
    window = rng.choice(LIMITED)
    assert window.limit_s is not None
    amount = rng.uniform(0, window.limit_s)
    if refill(window, entries, NOW, amount, reading=told, open_sessions=running) is None:
        for hour in range(0, 40 * 24, 5):
            left = balance(window, entries, told, running, NOW + hours(hour)).left_s
            assert left is not None
            assert left < amount


@pytest.mark.parametrize("seed", range(200))
def test_the_order_in_which_lines_arrive_is_irrelevant(seed: int) -> None:
    """Two processes, a restored copy, a late answer: the same lines give the same balance."""
    rng = random.Random(seed)
    entries, told, running = random_ledger(rng)
    mixed, others = rng.sample(entries, len(entries)), rng.sample(running, len(running))
    for window in ALL:
        assert balance(window, mixed, told, others, NOW) == balance(
            window, entries, told, running, NOW
        )


@pytest.mark.parametrize("seed", range(200))
def test_sums_are_exact(seed: int) -> None:
    """Of a quota that never comes back, use is the sum of charges and adjustments, to the second."""
    rng = random.Random(seed)
    entries, _, _ = random_ledger(rng)
    found = balance(PREPAID, entries, None, [], NOW)
    used = sum(e.amount_s for e in entries if e.kind in (EntryKind.CHARGE, EntryKind.ADJUST))
    assert found.used_s == pytest.approx(used, abs=1e-6)
    assert found.reserved_s == pytest.approx(
        sum(e.amount_s for e in entries if e.kind is EntryKind.RESERVE)
        - sum(e.amount_s for e in entries if e.kind is EntryKind.RELEASE),
        abs=1e-6,
    )


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 3, 29, 1, tzinfo=UTC),  # clocks go forward in Europe
        datetime(2026, 10, 25, 1, tzinfo=UTC),  # and back
        datetime(2026, 11, 1, 6, tzinfo=UTC),  # and back in New York
        datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(2028, 2, 29, tzinfo=UTC),
    ],
)
def test_weeks_and_months_are_as_long_as_they_are_in_utc(moment: datetime) -> None:
    """No window changes its length with the season, none is skipped at the end of a year."""
    weekly = balance(WEEKLY, [], None, [], moment).resets_at
    assert weekly is not None
    after = balance(WEEKLY, [], None, [], weekly).resets_at
    assert after == weekly + timedelta(days=7)
    assert moment < weekly <= moment + timedelta(days=7)
    monthly = balance(MONTHLY, [], None, [], moment).resets_at
    assert monthly is not None
    assert (monthly.hour, monthly.minute, monthly.second) == (0, 0, 0)
    assert moment < monthly <= moment + timedelta(days=31)
    used = [charge(moment, 3)]
    just_before = balance(WEEKLY, used, None, [], weekly - timedelta(seconds=1))
    assert just_before.used_s == 3 * HOUR
    assert balance(WEEKLY, used, None, [], weekly).used_s == 0


# --- a platform that counts differently ---------------------------------------------------------------------


def report(used_h: float, at: datetime = NOW) -> QuotaReport:
    return QuotaReport(
        pool="gpu", used_s=used_h * HOUR, limit_s=30 * HOUR, resets_at=None, as_of=at
    )


def test_a_reading_that_disagrees_is_entered_with_both_figures() -> None:
    """Then the ledger agrees, and the same reading again enters nothing."""
    used = [charge(NOW - hours(5), 2)]
    found = correction(WEEKLY, used, [], report(5.5))
    assert found is not None
    assert found.amount_s == pytest.approx(3.5 * HOUR)
    assert found.note == "the platform says 5 h 30 min used, the ledger had 2 h"
    used.append(entry(EntryKind.ADJUST, NOW, found.amount_s / HOUR))
    later = NOW + hours(1)
    assert correction(WEEKLY, used, [], report(5.5, later)) is None


def test_less_than_we_thought_is_a_disagreement_too() -> None:
    """Quota comes back to the user."""
    found = correction(WEEKLY, [charge(NOW - hours(5), 9)], [], report(2))
    assert found is not None
    assert found.amount_s == pytest.approx(-7 * HOUR)


def test_what_sessions_hold_is_no_disagreement_whichever_way_a_platform_counts_it() -> None:
    """Kaggle counts what a running session may still take as used, others only what it took."""
    held = [entry(EntryKind.RESERVE, NOW, 9, "s")]
    there = [open_session("s", NOW, 9, 1.0)]
    for said in (0.0, 4.0, 9.0):
        assert correction(WEEKLY, held, there, report(said)) is None
    assert correction(WEEKLY, held, there, report(10)) is not None


def test_rounding_and_credits_are_no_disagreement() -> None:
    """Minutes are rounded; of credits platforms tell what is left, not what was used."""
    assert correction(WEEKLY, [charge(NOW - hours(5), 2)], [], report(2.05)) is None
    assert correction(PREPAID, [charge(NOW - hours(5), 2)], [], report(0)) is None
