"""Laws of the ledger's arithmetic, for whatever a ledger may hold: lines of whole seconds, in any order, at any time of any year."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from freegpu.adapters.base import QuotaReport, Window
from freegpu.orchestrator.model import Entry, EntryKind, FigureSource, Reading, Session
from freegpu.orchestrator.quota import balance
from freegpu.orchestrator.reckoning import aged, correction
from tests.unit.test_quota import ALL, LIMITED, MONTHLY, PREPAID, ROLLING, WEEKLY, open_session

HOUR = 3600.0
WEEK = timedelta(days=7)
laws = settings(max_examples=150, deadline=None)

#: every second from 2024 to 2031: leap years, year ends, and every change of clocks in them
moments = st.integers(0, 7 * 365 * 86400).map(
    lambda s: datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=s)
)
zones = st.sampled_from(
    ["Europe/Berlin", "America/New_York", "Asia/Shanghai", "Australia/Lord_Howe", "Asia/Kathmandu"]
).map(ZoneInfo)
#: a Kaggle week begins on Saturday, others on Monday or at any second
offsets = st.integers(0, 7 * 86400 - 1).map(float)


def line(kind: EntryKind, at: datetime, seconds: int, session: str = "", id: int = 0) -> Entry:
    return Entry(
        id=id,
        at=at,
        kind=kind,
        platform="kaggle",
        account="me",
        pool="gpu",
        session=session,
        amount_s=float(seconds),
        note="",
    )


@st.composite
def ledgers(draw: st.DrawFn, now: datetime) -> tuple[list[Entry], list[Session]]:
    """Sessions that ended or run, and corrections either way, in the ten weeks before."""
    entries: list[Entry] = []
    running: list[Session] = []
    ago = st.integers(0, 70 * 86400).map(lambda s: now - timedelta(seconds=s))
    for number in range(draw(st.integers(0, 8))):
        name, start = f"s{number}", draw(ago)
        held, ran = draw(st.integers(0, 12 * 3600)), draw(st.integers(0, 12 * 3600))
        entries.append(line(EntryKind.RESERVE, start, held, name))
        end = start + timedelta(seconds=ran)
        if end > now:
            running.append(open_session(name, start, held / HOUR))
            continue
        entries.append(line(EntryKind.RELEASE, end, held, name))
        entries.append(line(EntryKind.CHARGE, end, ran * draw(st.sampled_from([1, 2])), name))
    entries += [
        line(EntryKind.ADJUST, draw(ago), draw(st.integers(-40_000, 40_000)))
        for _ in range(draw(st.integers(0, 3)))
    ]
    return entries, running


@st.composite
def readings(draw: st.DrawFn, now: datetime) -> Reading | None:
    if not draw(st.booleans()):
        return None
    as_of = now - timedelta(seconds=draw(st.integers(0, 20 * 86400)))
    resets = draw(st.none() | st.integers(1, 7 * 86400).map(lambda s: as_of + timedelta(seconds=s)))
    return Reading(
        platform="kaggle",
        account="me",
        pool="gpu",
        used_s=float(draw(st.integers(0, 200_000))),
        limit_s=draw(st.none() | st.integers(0, 200_000).map(float)),
        resets_at=resets,
        as_of=as_of,
    )


@laws
@given(st.data(), moments, st.sampled_from(ALL))
def test_no_balance_is_negative_and_none_exceeds_its_limit(
    data: st.DataObject, now: datetime, window: Window
) -> None:
    """Whatever the lines and the platform say, corrections downwards included."""
    entries, running = data.draw(ledgers(now))
    found = balance(window, entries, data.draw(readings(now)), running, now)
    assert found.used_s >= 0
    assert found.reserved_s >= 0
    if found.left_s is not None and found.limit_s is not None:
        assert 0 <= found.left_s <= found.limit_s


@laws
@given(st.data(), moments, st.sampled_from(ALL))
def test_lines_may_arrive_in_any_order(data: st.DataObject, now: datetime, window: Window) -> None:
    """To the last bit: a figure that depends on the order would differ between two commands."""
    entries, running = data.draw(ledgers(now))
    told = data.draw(readings(now))
    mixed, others = data.draw(st.permutations(entries)), data.draw(st.permutations(running))
    assert balance(window, mixed, told, others, now) == balance(window, entries, told, running, now)


@laws
@given(st.data(), moments, offsets)
def test_every_charge_is_counted_in_exactly_one_week(
    data: st.DataObject, now: datetime, offset: float
) -> None:
    """Summed over all weeks, the use is that of all charges: no reset loses or doubles one, also not at its very moment."""
    window = replace(WEEKLY, reset_offset_s=offset, limit_s=None)
    found, _ = data.draw(ledgers(now))
    charges = [e for e in found if e.kind is EntryKind.CHARGE]
    if charges:
        reset = balance(window, [], None, [], charges[0].at).resets_at
        assert reset is not None
        charges.append(replace(charges[0], at=reset, session="at the reset"))
    at, counted = now - timedelta(days=90), 0.0
    while at <= now + 2 * WEEK:
        end = balance(window, [], None, [], at).resets_at
        assert end is not None
        closing = end - timedelta(microseconds=1)
        there = [e for e in charges if e.at <= closing]
        counted += balance(window, there, None, [], closing).used_s
        at = end
    assert counted == sum(e.amount_s for e in charges)


@laws
@given(st.data(), moments)
def test_what_does_not_come_back_is_the_exact_sum(data: st.DataObject, now: datetime) -> None:
    """Whole seconds add up without a rounding error."""
    entries, running = data.draw(ledgers(now))
    used = sum(int(e.amount_s) for e in entries if e.kind in (EntryKind.CHARGE, EntryKind.ADJUST))
    found = balance(replace(PREPAID, limit_s=None), entries, None, running, now)
    assert found.used_s == max(0, used)


@laws
@given(moments, offsets, zones)
def test_weeks_have_seven_days_whatever_clocks_do(
    now: datetime, offset: float, zone: ZoneInfo
) -> None:
    """Where the clocks change, at year ends and on leap days; the zone of the question has no say."""
    window = replace(WEEKLY, reset_offset_s=offset)
    end = balance(window, [], None, [], now).resets_at
    assert end is not None
    assert now < end <= now + WEEK
    assert (end - datetime(2024, 1, 1, tzinfo=UTC)).total_seconds() % (7 * 86400) == offset
    assert balance(window, [], None, [], end).resets_at == end + WEEK
    assert balance(window, [], None, [], now.astimezone(zone)).resets_at == end


@laws
@given(moments, zones)
def test_months_begin_on_the_first_in_utc(now: datetime, zone: ZoneInfo) -> None:
    """Also in February, in December, and where it is another month already."""
    end = balance(MONTHLY, [], None, [], now).resets_at
    assert end is not None
    assert (end.day, end.hour, end.minute, end.second, end.microsecond) == (1, 0, 0, 0, 0)
    assert now < end <= now + timedelta(days=31)
    assert balance(MONTHLY, [], None, [], now.astimezone(zone)).resets_at == end
    following = balance(MONTHLY, [], None, [], end).resets_at
    assert following is not None
    assert following.month == end.month % 12 + 1


@laws
@given(moments, st.integers(1, 7 * 86400), st.integers(0, 50))
def test_the_platforms_own_refresh_sets_the_weeks(now: datetime, left: int, weeks: int) -> None:
    """What it once said of its reset holds for every later week, against what is declared."""
    said = now + timedelta(seconds=left)
    told = Reading(
        platform="kaggle",
        account="me",
        pool="gpu",
        used_s=60.0,
        limit_s=None,
        resets_at=said,
        as_of=now,
    )
    assert balance(WEEKLY, [], told, [], now).resets_at == said
    later = now + weeks * WEEK
    assert balance(WEEKLY, [], told, [], later).resets_at == said + weeks * WEEK


def test_a_correction_reaches_what_the_platform_says_from_below_nothing() -> None:
    """A correction had taken away more than there was; the next one counts from there, not from nothing."""
    now = datetime(2024, 1, 3, tzinfo=UTC)
    entries = [line(EntryKind.ADJUST, now - timedelta(hours=1), -5000)]
    said = QuotaReport(pool="gpu", used_s=2161.0, limit_s=None, resets_at=None, as_of=now)
    found = correction(WEEKLY, entries, [], said)
    assert found is not None
    assert found.amount_s == 7161.0
    entries.append(line(EntryKind.ADJUST, now, 7161))
    assert balance(WEEKLY, entries, None, [], now).used_s == 2161.0


@laws
@given(st.data(), moments, st.sampled_from([w for w in LIMITED if w is not PREPAID]))
def test_after_a_correction_the_ledger_agrees(
    data: st.DataObject, now: datetime, window: Window
) -> None:
    """One line with both figures, and the same report again enters nothing."""
    entries, running = data.draw(ledgers(now))
    resets = None
    if window is WEEKLY:
        resets = now + timedelta(seconds=data.draw(st.integers(1, 7 * 86400)))
    said = QuotaReport(
        pool="gpu",
        used_s=float(data.draw(st.integers(0, 200_000))),
        limit_s=None,
        resets_at=resets,
        as_of=now,
    )
    # more than a platform's own count is taken away where the ledger had it below nothing
    found = correction(window, entries, running, said)
    if found is None or balance(window, entries, None, running, now).used_s == 0:
        return
    assert found.note.startswith("the platform says ")
    assert "the ledger had " in found.note
    entries.append(
        replace(line(EntryKind.ADJUST, now, 0), amount_s=found.amount_s, note=found.note)
    )
    assert correction(window, entries, running, said) is None


@laws
@given(moments, st.integers(0, 6 * 86400), st.integers(1, 12))
def test_a_week_that_is_over_on_the_platform_is_over_in_the_comparison(
    now: datetime, since: int, hours: int
) -> None:
    """Use from before the platform's own reset is no disagreement, whenever the declared week begins."""
    resets = now + WEEK - timedelta(seconds=since)
    began = resets - WEEK
    before = [line(EntryKind.CHARGE, began - timedelta(seconds=60), hours * 3600)]
    said = QuotaReport(pool="gpu", used_s=0.0, limit_s=108_000.0, resets_at=resets, as_of=now)
    assert correction(WEEKLY, before, [], said) is None
    within = [line(EntryKind.CHARGE, began, hours * 3600)]
    found = correction(WEEKLY, within, [], said)
    assert found is not None
    assert found.amount_s == -hours * 3600


def test_every_figure_has_its_age() -> None:
    """A reading's moment, the ledger's newest line, the day of the declaration; none where nobody noted one."""
    now = datetime(2026, 12, 2, 12, tzinfo=UTC)
    declared = replace(ROLLING, verified_on="2026-11-30")
    lines = [line(EntryKind.CHARGE, now - timedelta(hours=h), 60) for h in (9, 3, 5)]
    nothing = balance(declared, [], None, [], now)
    assert (nothing.source, aged(nothing, [], now).age_s) == (FigureSource.DECLARED, 60 * HOUR)
    assert aged(balance(ROLLING, [], None, [], now), [], now).age_s is None
    counted = balance(declared, lines, None, [], now)
    assert (counted.source, aged(counted, lines, now).age_s) == (FigureSource.LEDGER, 3 * HOUR)
    said = Reading(
        platform="kaggle",
        account="me",
        pool="gpu",
        used_s=0.0,
        limit_s=None,
        resets_at=None,
        as_of=now - timedelta(minutes=4),
    )
    live = balance(declared, lines, said, [], now)
    assert (live.source, aged(live, lines, now).age_s) == (FigureSource.LIVE, 240)
