"""Output becomes immutable segments: quickly at first, whole at the end, and without the user's secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from freegpu.agent import logs as logs_module
from freegpu.agent import wire
from freegpu.agent.logs import LogShipper
from tests.unit.agent_parts import ManualClock, Unsteady


class Bench:
    """A spool, a store and a shipper on a manual clock."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.clock = ManualClock()
        self.store = Unsteady(folder / "store")
        self.spool = folder / "spool"
        self.notices: list[tuple[str, str]] = []
        self.logs = LogShipper(
            self.store,
            self.clock,
            "a-1",
            self.spool,
            lambda code, detail: self.notices.append((code, detail)),
            **options,
        )

    def says(self, data: bytes) -> None:
        with open(self.spool, "ab") as file:
            file.write(data)

    def pass_time(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while True:
            wait = self.logs.step()
            if wait is None or self.clock.now + wait > end:
                self.clock.now = end
                return
            self.clock.now += wait

    @property
    def segments(self) -> list[bytes]:
        keys = self.store.inner.list(wire.log_prefix("a-1"))
        assert keys == [wire.log_key("a-1", seq) for seq in range(1, len(keys) + 1)]
        return [wire.unpack_log(self.store.inner.get(key)) for key in keys]


def test_the_first_output_is_shipped_at_once_and_the_next_within_a_second(tmp_path: Path) -> None:
    """A person waits for the first line; a store does not want a file for each."""
    bench = Bench(tmp_path)
    bench.says(b"first\n")
    bench.logs.step()
    assert bench.segments == [b"first\n"]
    for i in range(10):
        bench.says(b"line %d\n" % i)
        bench.pass_time(0.09)
    assert len(bench.segments) == 1
    bench.pass_time(1.2)
    assert b"".join(bench.segments) == b"first\n" + b"".join(b"line %d\n" % i for i in range(10))
    assert len(bench.segments) <= 3


def test_nothing_is_written_when_nothing_is_said(tmp_path: Path) -> None:
    """Before the spool exists, and when it stays as it is."""
    bench = Bench(tmp_path)
    bench.pass_time(60)
    bench.says(b"x")
    bench.pass_time(600)
    assert bench.segments == [b"x"]


def test_a_long_job_writes_fewer_and_larger_segments(tmp_path: Path) -> None:
    """An hour of chatter is not 3,600 files."""
    bench = Bench(tmp_path)
    for _ in range(3600):
        bench.says(b"tick\n")
        bench.pass_time(1)
    assert len(bench.segments) < 60 + 240 + 3600 / 5
    bench.logs.close()
    bench.pass_time(5)
    assert b"".join(bench.segments) == b"tick\n" * 3600


def test_big_output_is_cut_at_lines_into_segments_of_bounded_size(tmp_path: Path) -> None:
    """Except where there is no line to cut at."""
    bench = Bench(tmp_path)
    text = b"".join(b"%07d\n" % i for i in range(400_000)) + b"\xff" * (3 << 20)
    bench.says(text)
    bench.logs.close()
    bench.pass_time(1)
    assert bench.logs.done
    assert b"".join(bench.segments) == text
    assert max(map(len, bench.segments)) <= 1 << 20
    assert bench.segments[0].endswith(b"\n")
    assert bench.logs.segments == len(bench.segments)


def test_a_segment_that_was_not_taken_is_written_again_with_the_same_bytes(tmp_path: Path) -> None:
    """The store may have it although it did not say so; a segment never changes."""
    bench = Bench(tmp_path)
    bench.store.away = True
    bench.says(b"one\n")
    bench.pass_time(5)
    bench.says(b"two\n")
    bench.pass_time(60)
    bench.store.away = False
    bench.pass_time(40)
    assert bench.segments == [b"one\n", b"two\n"]
    assert bench.notices == []


def test_progress_is_read_while_the_store_is_away(tmp_path: Path) -> None:
    """It labels checkpoints, which are taken all the same."""
    bench = Bench(tmp_path)
    bench.store.away = True
    for step in (1, 2, 3):
        bench.says(b'FREEGPU_PROGRESS {"step": %d}\n' % step)
        bench.pass_time(5)
        assert bench.logs.step_number == step


def test_a_store_that_stays_away_costs_the_oldest_output_and_says_so(tmp_path: Path) -> None:
    """One clear line in the place of what is left out, one notice, and the end is there."""
    bench = Bench(tmp_path, cap=100_000)
    bench.store.away = True
    bench.says(b"first\n")
    bench.pass_time(2)
    lines = [b"line %06d\n" % i for i in range(20_000)]
    bench.says(b"".join(lines))
    bench.pass_time(60)
    bench.store.away = False
    bench.logs.close()
    bench.pass_time(60)
    log = b"".join(bench.segments)
    assert log.startswith(b"first\n[freegpu: ")
    assert log.endswith(lines[-1])
    kept = log.split(b"\n", 2)[2]
    assert len(kept) <= 100_000
    assert kept.splitlines(keepends=True) == lines[-kept.count(b"\n") :]
    lost = int(log.split(b"freegpu: ")[1].split()[0])
    assert lost + len(kept) == len(b"".join(lines))
    assert [code for code, _ in bench.notices] == ["log_truncated"]


@pytest.mark.parametrize("cut", range(1, 18))
def test_a_secret_is_hidden_also_when_it_comes_in_two_pieces(tmp_path: Path, cut: int) -> None:
    """The first piece waits for the second."""
    secret = "hunter2-correct-horse"
    bench = Bench(tmp_path, secrets=(secret, "short"))
    text = b"key=" + secret.encode() + b" short\n"
    bench.says(text[: 4 + cut])
    bench.pass_time(3)
    assert b"".join(bench.segments) == b"key="
    bench.says(text[4 + cut :])
    bench.logs.close()
    bench.pass_time(3)
    assert b"".join(bench.segments) == b"key=*** short\n"
    assert secret not in bench.logs.tail()


def test_what_only_began_like_a_secret_is_shipped_at_the_end(tmp_path: Path) -> None:
    """Nothing is lost to caution."""
    bench = Bench(tmp_path, secrets=("hunter2-correct",))
    bench.says(b"the hunter")
    bench.pass_time(3)
    bench.logs.close()
    bench.pass_time(1)
    assert b"".join(bench.segments) == b"the hunter"


def test_each_line_of_a_secret_of_many_lines_is_hidden(tmp_path: Path) -> None:
    """A private key is printed line by line."""
    bench = Bench(tmp_path, secrets=("-----BEGIN\nabcdefghijkl\n-----END",))
    bench.says(b"x abcdefghijkl y\n")
    bench.logs.close()
    bench.pass_time(1)
    assert b"".join(bench.segments) == b"x *** y\n"


def test_the_end_is_bounded_by_its_deadline(tmp_path: Path) -> None:
    """A dead store may not hold up the end of a session."""
    bench = Bench(tmp_path)
    bench.store.away = True
    bench.says(b"x")
    bench.logs.close(bench.clock.now + 30)
    bench.pass_time(29)
    assert not bench.logs.done
    bench.pass_time(2)
    bench.logs.step()
    assert bench.logs.done


def test_a_spool_that_the_job_removed_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """`rm -rf` of a job reaches everything."""
    bench = Bench(tmp_path)
    bench.says(b"x" * 10)
    bench.pass_time(2)
    bench.says(b"y" * 10)
    bench.spool.unlink()
    bench.logs.close()
    bench.pass_time(5)
    assert bench.logs.done


def test_the_tail_shows_whole_lines_as_a_terminal_would(tmp_path: Path) -> None:
    """The last state of a progress bar, bad bytes replaced, bounded."""
    bench = Bench(tmp_path)
    assert bench.logs.tail() == ""
    bench.says(b"".join(b"%d\n" % i for i in range(100)) + b"\r 1%\r 50%\r100%\n\xff\n\n")
    assert bench.logs.tail(4) == "98\n99\n100%\n\ufffd"
    bench.says(b"x" * 100_000)
    assert len(bench.logs.tail()) == 2000


def test_looks_at_the_spool_become_rare_when_nothing_is_said(tmp_path: Path) -> None:
    """An agent at rest costs nothing that one could measure."""
    bench = Bench(tmp_path)
    waits = []
    for _ in range(100):
        wait = bench.logs.step()
        assert wait is not None
        waits.append(wait)
        bench.clock.now += wait
    assert waits[0] <= 0.1
    assert waits[-1] == logs_module._CALM_S
