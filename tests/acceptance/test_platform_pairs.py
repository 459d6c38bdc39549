"""A job that loses its session on one platform is finished on another, whichever two they are, through the command line.

Real clients against loopback platforms that really run what is started; the result is compared, byte for byte, with
that of a run which nobody disturbed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.servers.rigs import Rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

PLATFORMS = ("kaggle", "lightning", "ssh", "colab", "local")


class Here:
    """This machine as a platform; see Rig."""

    name = "local"
    table: Mapping[str, Any] = {"adapter": "local"}
    env: Mapping[str, str] = {}
    connect: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    def __init__(self, user: Any) -> None:
        self.user = user

    def opens(self, store: Path) -> str:
        return ""

    def saved(self, job: str) -> bool | None:
        return None

    def lose(self) -> int:
        """Everything of the session is killed: the agent first, or it would see its job die."""
        agents = self.user.processes("freegpu-agent")
        for word in ("freegpu-agent", "counter.py"):
            for pid in self.user.processes(word):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return len(agents)

    def refuse(self, on: bool) -> None:
        """One's own machine never does; see `use`."""

    def heard(self) -> bytes:
        return b""


@contextlib.contextmanager
def made(platform: str, folder: Path, user: Any) -> Iterator[Rig]:
    """The platform until the block ends."""
    if platform == "local":
        yield Here(user)
        return
    with import_module(f"tests.servers.rig_{platform}").rig(folder) as rig:
        yield rig


def use(user: Any, store: Path, *rigs: Rig) -> None:
    """freegpu.toml as `connect` would leave it with these platforms and no others."""
    user.settings()
    text = (user.home / "freegpu.toml").read_text() + f"store = {json.dumps(f'folder:{store}')}\n"
    if not any(rig.name == "local" for rig in rigs):
        text += "[platforms.local]\nenabled = false\n"
    for rig in rigs:
        seen = rig.opens(store)
        table = {**rig.table, **({"store": seen} if seen else {})}
        text += f"[platforms.{rig.name}]\n"
        text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
    (user.home / "freegpu.toml").write_text(text)


def at_home(user: Any, folder: Path, *rigs: Rig) -> None:
    """The shell of a user who has an account on each: one home folder, all that lies in theirs."""
    home = folder / "me"
    home.mkdir()
    env: dict[str, str] = {}
    for rig in sorted(
        rigs, key=lambda rig: rig.name == "colab-cli"
    ):  # its proxy is the only way out
        env.update(rig.env)
        theirs = Path(rig.env.get("HOME", folder / "none"))
        for entry in theirs.iterdir() if theirs.is_dir() else ():
            (home / entry.name).symlink_to(entry)
    user.env.update({**env, "HOME": str(home)})


@pytest.mark.parametrize(
    ("first", "second"),
    [pytest.param(a, b, id=f"{a}-then-{b}") for a, b in itertools.permutations(PLATFORMS, 2)],
)
def test_a_job_that_loses_its_session_is_finished_on_another_platform(
    user: Any, expected: Any, tmp_path: Path, first: str, second: str
) -> None:
    """Starts where alone it can, is checkpointed, its session is killed without notice, ends elsewhere as if undisturbed."""
    store = tmp_path / "shared store"
    store.mkdir()
    with (
        made(first, tmp_path / "first", user) as one,
        made(second, tmp_path / "second", user) as two,
    ):
        at_home(user, tmp_path, one, two)
        use(user, store, one)
        user.ok("submit", user.counter(total=20, pause=0.05, hold=10), timeout=120)
        job = user.job("count")["job"]["id"]

        def saved() -> bool:
            """A checkpoint of step 10 or so lies where it survives the session."""
            user.ok("tick", timeout=120)
            inside = one.saved(job)
            return bool(user.job("count")["checkpoints"]) if inside is None else inside

        user.until(saved, 150)
        one.refuse(True)
        use(user, store, *((two,) if one.name == "local" else (one, two)))
        assert one.lose() >= 1
        user.go()
        detail = user.until_job("count", "succeeded", 200)
        ends = [(attempt["platform"], attempt["reason"]) for attempt in detail["attempts"]]
        assert ends[0] == (one.name, "lost")
        assert ends[-1] == (two.name, "completed")
        begun = [line for line in user.ok("logs", "count").out.splitlines() if "begin at" in line]
        assert "resume=1" in begun[-1]
        assert "begin at 0" not in begun[-1]
        user.ok("pull", "count", "home", timeout=120)
        result = (user.desk / "home" / "result.json").read_text()
        assert result == json.dumps(expected(20))
        for rig in (one, two):
            heard = rig.heard()
            for secret in rig.secrets:
                assert secret.encode() not in heard
