"""Words and columns: durations, sizes, text that can harm no terminal, tables that fit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from freegpu.cli import text
from freegpu.cli.text import Column

NOW = datetime(2026, 12, 2, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (float("inf"), "for ever"),
        (0, "0 s"),
        (1.5, "1.5 s"),
        (9.99, "10 s"),
        (45, "45 s"),
        (119.6, "2 min"),
        (150, "2 min 30 s"),
        (3599, "1 h"),
        (7800, "2 h 10 min"),
        (86399, "1 d"),
        (3 * 86400 + 4 * 3600, "3 d 4 h"),
        (14 * 86400 - 1, "14 d"),
        (-90, "-90 s"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float | None, words: str) -> None:
    """And never "60 min" or "24 h" by rounding."""
    assert text.duration(seconds) == words


def test_quotas_are_spoken_of_in_hours() -> None:
    """ "30 h a week", not "1 d 6 h"."""
    assert text.duration(108000, days=False) == "30 h"


def test_moments_are_told_relative_to_now() -> None:
    """Both directions, and the moment itself."""
    assert text.until(NOW + timedelta(days=3, hours=4), NOW) == "in 3 d 4 h"
    assert text.until(NOW, NOW) == text.ago(NOW, NOW) == "now"
    assert text.ago(NOW - timedelta(seconds=90), NOW) == "90 s ago"
    assert text.until(None, NOW) == text.ago(None, NOW) == "-"


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1.0 kB"),
        (12_345, "12.3 kB"),
        (123_456_789, "123 MB"),
        (4e9, "4.0 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_sizes_are_decimal_with_three_digits(amount: float, words: str) -> None:
    """As disks and transfers are counted."""
    assert text.size(amount) == words


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("bell\x07 del\x7f c1\x9b", "bell\\x07 del\\x7f c1\\x9b"),
        ("abc\u202edcba", "abc\\u202edcba"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("half\ud800", "half\\ud800"),
        ("训练 é 👩‍🔬", "训练 é 👩‍🔬"),
    ],
)
def test_control_characters_of_names_become_visible(hostile: str, shown: str) -> None:
    """A job's name can neither colour, move, ring nor turn a line around; what people write stays."""
    assert text.safe(hostile) == shown


def test_wide_characters_take_two_columns_and_combining_ones_none() -> None:
    """So that Chinese names do not push the columns behind them."""
    assert text.width("abc") == 3
    assert text.width("训练") == 4
    assert text.width("e\u0301") == 1
    assert text.pad("训练", 6) == "训练  "
    assert text.clip("训练任务", 5) == "训练…"
    assert text.clip("训练任务", 6) == "训练…"
    assert text.clip("abcdef", 4) == "abc…"


def test_columns_align_under_wide_names() -> None:
    """Every cell of a column begins in the same terminal column."""
    lines = text.table(
        [Column(title="NAME"), Column(title="STATE")], [("训练任务", "active"), ("x", "failed")]
    )
    starts = {
        text.width(line[: line.index(word)])
        for line, word in zip(lines, ("STATE", "active", "failed"), strict=True)
    }
    assert len(starts) == 1


@pytest.mark.parametrize("room", [30, 40, 60, 200])
def test_a_table_never_takes_more_room_than_there_is(room: int) -> None:
    """Flexible columns give way first, and an ellipsis says that something is missing."""
    columns = [Column(title="ID"), Column(title="NAME", flex=True), Column(title="WHY", flex=True)]
    rows = [("k3x9f2", "训" * 30, "because " * 10), ("q81mzt", "b", "short")]
    lines = text.table(columns, rows, room=room)
    assert max(map(text.width, lines)) <= room
    assert all(line.split()[0] in ("ID", "k3x9f2", "q81mzt") for line in lines)
    assert ("…" in lines[1]) == (room < 200)


def test_columns_without_any_value_are_left_out() -> None:
    """A column of nothing says nothing."""
    lines = text.table([Column(title="A"), Column(title="B")], [("1", ""), ("2", "")])
    assert lines == ["A", "1", "2"]


def test_styles_do_not_change_the_layout() -> None:
    """Escape codes are put around a cell after it was measured."""
    columns = [Column(title="A"), Column(title="B")]
    rows: list[list[str | tuple[str, str]]] = [[("x", "good"), "y"], ["longer", "z"]]
    plain = text.table(columns, rows)
    painted = text.table(columns, rows, paint=lambda words, style: f"<{words}>")
    assert [line.replace("<", "").replace(">", "").rstrip() for line in painted] == plain
