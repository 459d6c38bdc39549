"""What a job prints is understood as progress, and nothing that it prints can do harm."""

from __future__ import annotations

import json

import pytest

from freegpu.agent.progress import MAX_LINE, Progress


def feed(*chunks: bytes) -> dict[str, object]:
    progress = Progress()
    for chunk in chunks:
        progress.feed(chunk)
    return progress.latest


def test_our_own_line_is_read_with_all_its_fields() -> None:
    """`FREEGPU_PROGRESS {json}` gives step, total, loss and whatever else is plain."""
    line = b'FREEGPU_PROGRESS {"step": 120, "total": 4000, "loss": 0.31, "split": "train"}\n'
    assert feed(line) == {"step": 120, "total": 4000, "loss": 0.31, "split": "train"}


def test_a_line_cut_into_single_bytes_is_read_like_a_whole_one() -> None:
    """Reads end anywhere: inside the marker, inside the JSON, between carriage return and line feed."""
    line = b'noise\r\nFREEGPU_PROGRESS {"step": 7, "loss": 0.5}\r\nmore\n'
    assert feed(*(line[i : i + 1] for i in range(len(line)))) == {"step": 7, "loss": 0.5}


def test_an_unfinished_line_says_nothing_yet() -> None:
    """`{"step": 12}` may still become `{"step": 120}`."""
    assert feed(b'FREEGPU_PROGRESS {"step": 12}') == {}


def test_the_last_of_many_lines_counts_and_silent_fields_stay() -> None:
    """Progress is merged: a line without a loss does not forget the loss."""
    lines = b'FREEGPU_PROGRESS {"step": 1, "loss": 3}\nFREEGPU_PROGRESS {"step": 2}\n'
    assert feed(*lines.splitlines(keepends=True)) == {"step": 2, "loss": 3}


@pytest.mark.parametrize(
    "text",
    [
        '{"step": NaN}',
        '{"step": 1, "loss": Infinity}',
        '{"step": 1, "loss": -Infinity}',
        '{"step": 1.5}',
        '{"step": -1}',
        '{"step": true}',
        '{"step": "12"}',
        '{"loss": "low"}',
        '{"step": 1, "more": {"nested": 1}}',
        '{"step": 1, "more": [1]}',
        '{"step": 1e400}',
        "[1, 2]",
        "12",
        '"text"',
        "{step: 1}",
        "{",
        "",
        '{"step": 1} trailing',
        json.dumps({f"field{i}": i for i in range(40)}),
        json.dumps({"x" * 65: 1}),
        json.dumps({"note": "x" * 201}),
        "[" * 3000,
        '{"a":' * 600 + "1" + "}" * 600,
    ],
)
def test_a_line_that_makes_no_sense_is_left_out_and_the_one_before_stays(text: str) -> None:
    """NaN, nested, oversized and malformed values are no progress, and raise nothing."""
    good = b'FREEGPU_PROGRESS {"step": 5}\n'
    assert feed(good, b"FREEGPU_PROGRESS " + text.encode() + b"\n") == {"step": 5}
    assert feed(good + b"FREEGPU_PROGRESS " + text.encode() + b"\n") == {"step": 5}


def test_null_means_that_the_script_does_not_know() -> None:
    """A total of null is no reason to refuse the step."""
    assert feed(b'FREEGPU_PROGRESS {"step": 5, "total": null}\n') == {"step": 5}


def test_an_endless_line_is_dropped_in_bounded_memory_and_the_next_one_is_read() -> None:
    """A gigabyte without a newline may not be collected, nor be taken for progress."""
    progress = Progress()
    for _ in range(64):
        progress.feed(b"FREEGPU_PROGRESS " + b"x" * MAX_LINE)
        assert len(progress._rest) <= MAX_LINE
    progress.feed(b'FREEGPU_PROGRESS {"step": 1}\nFREEGPU_PROGRESS {"step": 2}\n')
    assert progress.latest == {"step": 2}


def test_invalid_utf8_is_no_reason_to_stop_reading() -> None:
    """Bytes that are no text pass by."""
    bad = b'FREEGPU_PROGRESS {"step": 1, "x": "\xff"}\n\xfe\xff\n'
    assert feed(bad, b'FREEGPU_PROGRESS {"step": 2}\n') == {"step": 2}


def test_a_tqdm_bar_is_read_between_carriage_returns() -> None:
    """Step, total and speed come from the bar that was drawn last, before its line ends."""
    bars = (
        "\r  0%|          | 0/1000 [00:00<?, ?it/s]"
        "\r 12%|\u2588\u2588\u258f       | 120/1000 [00:10<01:20, 10.9it/s, loss=0.3]"
    )
    assert feed(bars.encode()) == {"step": 120, "total": 1000, "rate": 10.9}


def test_seconds_per_iteration_become_iterations_per_second() -> None:
    """tqdm turns its speed around when it is slow; we do not."""
    assert feed(b"\r 1%|# | 10/1000 [01:00<1:39:00,  4.00s/it]")["rate"] == 0.25


def test_a_short_evaluation_bar_does_not_hide_the_training_bar() -> None:
    """Inside the training's bar the Trainer draws one for each evaluation."""
    train = b"\r 50%|#####     | 500/1000 [05:00<05:00,  1.66it/s]"
    evaluation = b"\r 25%|##        | 2/8 [00:01<00:03,  2.00it/s]"
    progress = Progress()
    progress.feed(train)
    progress.feed(evaluation)
    assert progress.latest["step"] == 500
    progress.feed(b"\r 51%|#####     | 510/1000 [05:06<04:54,  1.66it/s]")
    assert progress.latest["step"] == 510


def test_bars_of_other_units_are_no_steps() -> None:
    """Downloads and tokenizing draw bars as well."""
    assert feed(b"\rMap:  50%|##### | 30000/60000 [00:10<00:10, 2991.36 examples/s]\n") == {}
    assert feed(b"\rmodel:  50%|##### | 250M/500M [00:10<00:10, 24.7MB/s]\n") == {}


def test_a_trainer_dict_gives_loss_and_epoch() -> None:
    """Old Trainers print numbers, new ones print them as text."""
    assert feed(b"{'loss': 0.4153, 'grad_norm': 1.5, 'epoch': 0.32}\n") == {
        "loss": 0.4153,
        "grad_norm": 1.5,
        "epoch": 0.32,
    }
    assert feed(b"{'loss': '0.4153', 'epoch': '0.32'}\n") == {"loss": 0.4153, "epoch": 0.32}
    assert feed(b"{'train_runtime': 2.0, 'train_loss': 0.2, 'epoch': 1.0}\n") == {}
    assert feed(b"{'train_loss': 0.2, 'epoch': 1.0}\n") == {"loss": 0.2, "epoch": 1.0}


@pytest.mark.parametrize(
    "text",
    ["{'loss': __import__('os').getpid()}", "{'loss': nan}", "{'loss': 1", "{'loss': 'low'}"],
)
def test_a_trainer_dict_is_never_evaluated_as_code(text: str) -> None:
    """Output is data."""
    assert feed(text.encode() + b"\n") == {}


def test_a_script_that_speaks_our_dialect_is_believed_over_its_bars() -> None:
    """Once a job has told its step, a bar of some library does not change it."""
    ours = b'FREEGPU_PROGRESS {"step": 5, "total": 10}\n'
    bar = b"\r 12%|# | 120/1000 [00:10<01:20, 10.9it/s]"
    for order in ([ours, bar, b"\n{'loss': 0.1}\n"], [bar, b"\n{'loss': 0.1}\n", ours]):
        assert feed(*order) == {"step": 5, "total": 10}
        assert feed(b"".join(order)) == {"step": 5, "total": 10}


def test_feed_tells_only_what_is_new() -> None:
    """None for output that says nothing new."""
    progress = Progress()
    assert progress.feed(b'FREEGPU_PROGRESS {"step": 5}\n') == {"step": 5}
    assert progress.feed(b'FREEGPU_PROGRESS {"step": 5}\n') is None
    assert progress.feed(b"epoch 5 done\n") is None
