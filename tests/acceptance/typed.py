"""Commands typed in this process, which is ten times as quick, and what a refusal must look like."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from freegpu.cli.app import run
from freegpu.cli.call import Call
from freegpu.cli.output import Output
from freegpu.cli.text import safe

_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"
#: name of an error -> its exit code, as documented
CODES = {
    name: int(code)
    for code, name in re.findall(
        r"^\| (\d+) \| `(\w+)`",
        _PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
} | {"os": 1, "internal": 1}


def inside(
    user: Any, words: Sequence[str], env: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that runs in this process: ten times as quick."""
    out, err = io.StringIO(), io.StringIO()
    environ = {**user.env, **(env or {})}
    call = Call(out=Output(stdout=out, stderr=err, environ=environ), environ=environ)
    with contextlib.chdir(user.desk):
        code = run(words, call=call)
    assert "Traceback" not in out.getvalue() + err.getvalue()
    return code, out.getvalue(), err.getvalue()


def told(err: str) -> tuple[str, str]:
    """The one sentence of a failure and its hint; nothing else may be there."""
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert lines[0].startswith("error: "), err
    assert lines[1].startswith("hint: "), err
    return lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ")


def refused(
    user: Any,
    words: Sequence[str],
    error: str,
    says: Sequence[str],
    hint: str = "",
    env: Mapping[str, str] | None = None,
) -> None:
    """The command fails with this class of error, as a sentence and as an envelope, and says all of this."""
    code, out, err = inside(user, words, env)
    assert (code, out) == (CODES[error], ""), out + err
    sentence, advice = told(err)
    for part in says:
        assert part in sentence, err
    assert not sentence.endswith("."), err
    assert hint in advice, err
    code, out, _ = inside(user, [*words, "--json"], env)
    document = json.loads(out)
    assert code == document["exit_code"] == CODES[error]
    assert document["status"] == "error"
    assert [e["code"] for e in document["errors"]] == [error]
    assert safe(document["errors"][0]["message"]) == sentence
    assert safe(document["errors"][0]["hint"]) == advice


def rows(home: Path) -> list[tuple[Any, ...]]:
    """What must not be lost: every job, what it is and how it stands."""
    with contextlib.closing(sqlite3.connect(f"file:{home / 'state.db'}?mode=ro", uri=True)) as db:
        return db.execute(
            "SELECT id, name, state, spec, result_key, attempts FROM jobs ORDER BY seq"
        ).fetchall()
