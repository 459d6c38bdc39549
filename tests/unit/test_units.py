"""Amounts as people write them."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from freegpu.jobs import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
        ("1d2h3m4s", 93784),
        ("45", 45),
        (" 0.5 ", 0.5),
        ("0s", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    """Units from large to small, each once; a plain number is in seconds."""
    assert units.duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "10 minutes", "1m1h", "1h1h", "-5m", "5m-", "1e3", "nan", "inf", "١m", "1h" * 99, "9" * 40]
)  # fmt: skip
def test_what_is_no_duration_says_how_to_write_one(text: str) -> None:
    """Nothing is guessed: digits of other scripts and exponents are slips."""
    with pytest.raises(ValueError, match=r"^is not a duration: write 90s, 10m, 1h30m or 2d$"):
        units.duration(text)


def test_a_duration_as_text_is_read_back_as_the_same_number() -> None:
    """duration_text is the inverse of duration, for whole seconds of any size."""
    rng = random.Random(1)
    for _ in range(300):
        seconds = rng.randrange(10 ** rng.randrange(1, 8))
        assert units.duration(units.duration_text(seconds)) == seconds
    assert units.duration_text(0) == "0s"
    assert units.duration_text(5400.5) == "1h30m0.5s"


@pytest.mark.parametrize(
    ("text", "size"),
    [("12", 12), ("12+", 12), ("12GB", 12), ("12 GiB+", 12), ("512MB", 0.5), ("1.5tb", 1536), ("2G", 2), ("16Gi", 16), ("1pb", 1048576), ("0", 0)],
)  # fmt: skip
def test_sizes_are_in_gb(text: str, size: float) -> None:
    """A plus means what a plain number means too: at least."""
    assert units.size_gb(text) == size


@pytest.mark.parametrize(
    "text", ["", "+", "GB", "12+GB", "-1", "1e3", "nan", ".inf", "12 EB", "1,5"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    """With the rest of a sentence that begins with what was found."""
    with pytest.raises(ValueError, match=r"^is not an amount of memory"):
        units.size_gb(text)
    with pytest.raises(ValueError, match=r"^is not a count"):
        units.threshold(text)


def test_moments_are_utc_and_need_a_zone() -> None:
    """09:00 in Shanghai is one in the night in UTC; without a zone it could be anything."""
    assert units.moment("2026-12-06T09:00+08:00") == datetime(2026, 12, 6, 1, tzinfo=UTC)
    assert units.moment("2026-12-06 09:00Z").tzinfo is UTC
    with pytest.raises(ValueError, match=r"as in 2026-12-06T09:00\+08:00, or Z for UTC"):
        units.moment("2026-12-06T09:00")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (10**10, "10.0 GB"), (3 * 10**12, "3.0 TB")],
)
def test_bytes_for_people(size: int, text: str) -> None:
    """Powers of 1000, one digit."""
    assert units.size_text(size) == text
