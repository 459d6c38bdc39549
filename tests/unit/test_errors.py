"""Errors are an interface: each class has a code and an exit code of its own, as the module's own tree says."""

from __future__ import annotations

import re

import pytest

from freegpu import errors
from freegpu.errors import AdapterError, FreeGPUError, JobSpecError

CLASSES = {name: getattr(errors, name) for name in errors.__all__}


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    """Names, depth, exit codes and which ones pass by themselves: what a reader sees there is so."""
    lines = re.findall(r"^    ([│├└─ ]*)(\w+Error) +(\d+)(.*)$", errors.__doc__ or "", re.MULTILINE)
    told = {
        name: (len(indent) // 4, int(code), "transient" in rest)
        for indent, name, code, rest in lines
    }
    real = {
        name: (
            len(kind.__mro__) - len(FreeGPUError.__mro__),
            kind.exit_code,
            issubclass(kind, AdapterError) and kind.transient,
        )
        for name, kind in CLASSES.items()
    }
    assert told == real


def test_every_code_and_exit_code_is_one_class_s_own() -> None:
    """A script can tell them apart by either."""
    assert len({kind.code for kind in CLASSES.values()}) == len(CLASSES)
    assert len({kind.exit_code for kind in CLASSES.values()}) == len(CLASSES)


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES.keys())
def test_exit_codes_keep_clear_of_the_shell_s_own(kind: type[FreeGPUError]) -> None:
    """0 is success, 2 a usage error, 126 and above belong to the shell and to signals."""
    assert kind.exit_code not in (0, 2)
    assert kind.exit_code < 126


def test_an_error_says_its_sentence_and_keeps_the_hint_apart() -> None:
    """str() is the sentence alone; a job spec's one begins with file and line where they are known."""
    error = FreeGPUError("the disk is full", hint="make room")
    assert (str(error), error.message, error.hint) == (
        "the disk is full",
        "the disk is full",
        "make room",
    )
    assert str(JobSpecError("no run", path="job.yaml", line=3)) == "job.yaml:3: no run"
    assert str(JobSpecError("no run", path="job.yaml")) == "job.yaml: no run"
    assert str(JobSpecError("no run")) == "no run"
