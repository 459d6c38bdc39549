"""The schema: each step from the beginning, on both databases, and one description of it, not two."""

from __future__ import annotations

from typing import Any

import pytest

from freegpu.clock import SystemClock
from freegpu.errors import LedgerError
from freegpu.orchestrator import migrations
from freegpu.orchestrator.database import Target, connect_postgres, connect_sqlite, parse
from freegpu.orchestrator.ledger import Ledger


def connection_to(target: Target) -> Any:
    if target.path is not None:
        return connect_sqlite(target.path, write=True)
    return connect_postgres(target.dsn)


def columns(target: Target) -> dict[str, dict[str, bool]]:
    """Every table with its columns, and whether each may be empty."""
    connection = connection_to(target)
    try:
        if target.is_sqlite:
            names = [
                row[0]
                for row in connection.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
                )
            ]
            return {
                name: {
                    row[1]: not row[3] for row in connection.execute(f"PRAGMA table_info({name})")
                }
                for name in names
            }
        found: dict[str, dict[str, bool]] = {}
        for table, column, nullable in connection.execute(
            "SELECT table_name, column_name, is_nullable FROM information_schema.columns"
            " WHERE table_schema = 'freegpu'"
        ).fetchall():
            found.setdefault(table, {})[column] = nullable == "YES"
        return found
    finally:
        connection.close()


@pytest.mark.parametrize("version", range(migrations.VERSION + 1))
def test_every_version_comes_to_the_newest_and_is_what_the_tables_say(
    url: str, version: int
) -> None:
    """From each version on, the steps end in exactly the tables that writes are made through."""
    from sqlmodel import SQLModel

    from freegpu.orchestrator import tables

    target = parse(url)
    if version:
        assert migrations.migrate(target, migrations.STEPS[:version]) == 0
    assert migrations.migrate(target) == version
    assert migrations.migrate(target) == migrations.VERSION
    assert tables.MetaRow.metadata is SQLModel.metadata
    wanted = {
        name: {column.name: bool(column.nullable) for column in table.columns}
        for name, table in SQLModel.metadata.tables.items()
    }
    assert columns(target) == wanted


def test_a_step_that_fails_is_undone_as_a_whole(url: str) -> None:
    """No ledger is left between two versions."""
    target = parse(url)
    migrations.migrate(target)
    before = columns(target)
    bad = [*migrations.STEPS, (("CREATE TABLE fine (x TEXT)", "CREATE TABLE broken ("), (), ())]
    with pytest.raises(Exception, match=r"syntax|incomplete"):
        migrations.migrate(target, bad)
    assert columns(target) == before
    with Ledger.open(url, clock=SystemClock()) as ledger:
        assert ledger.version() == migrations.VERSION


def test_an_older_ledger_keeps_what_it_holds(url: str) -> None:
    """A new step runs over the rows that are there."""
    target = parse(url)
    with Ledger.open(url, clock=SystemClock()) as ledger:
        ledger.set_meta("home", "abc")
    step = ("CREATE TABLE later (x {int}, at {utc}, r {real}, b {bool}, id {serial})",)
    more = [*migrations.STEPS, (step, (), ())]
    assert migrations.migrate(target, more) == migrations.VERSION
    connection = connection_to(target)
    found = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    connection.close()
    assert found == {"home": "abc", "schema": str(migrations.VERSION + 1)}


def test_a_database_shared_with_another_program_is_not_touched(url: str) -> None:
    """On PostgreSQL everything lies in a schema of its own."""
    target = parse(url)
    if target.is_sqlite:
        pytest.skip("a SQLite file is not shared")
    connection = connection_to(target)
    connection.execute("CREATE TABLE public.jobs (theirs TEXT)")
    try:
        with Ledger.open(url, clock=SystemClock()) as ledger:
            assert ledger.jobs() == []
        assert connection.execute("SELECT * FROM public.jobs").fetchall() == []
    finally:
        connection.execute("DROP TABLE public.jobs")
        connection.close()


def test_a_role_that_may_not_create_is_told_so(url: str) -> None:
    """The sentence names the database; the hint names the right that is missing."""
    target = parse(url)
    if target.is_sqlite:
        pytest.skip("SQLite has no roles")
    connection = connection_to(target)
    connection.execute("DROP ROLE IF EXISTS poor")
    connection.execute("CREATE ROLE poor LOGIN")
    try:
        poor = url.replace("postgres:@", "poor:@", 1)
        with pytest.raises(LedgerError, match="does not allow writing") as caught:
            Ledger.open(poor, clock=SystemClock())
        assert "CREATE" in caught.value.hint
    finally:
        connection.execute("DROP ROLE poor")
        connection.close()
