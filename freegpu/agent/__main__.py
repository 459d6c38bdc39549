"""`python3 freegpu-agent.pyz PROFILE.json [--access]`: the agent as a program.

With `--access` a line of JSON on stdin says how the store is opened: `secrets` by name, and `token_file`, where
whoever started the agent keeps a fresh access token. Neither is in the profile, in an argument or in the
environment, so no job sees them. With `tied` the agent saves and leaves when its stdin is closed: whoever
started it is gone.

Exit codes: 0 the session ended in an orderly way (exit.json says how), 2 the profile is not usable,
3 an agent of this session is or was at work already, 4 the store belongs to somebody else,
5 the store could not be reached.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

#: wait this long for the store at the start: a mount may come up after us
_STORE_PATIENCE_S = 120.0


def main(arguments: Optional[List[str]] = None) -> int:
    """Run one session. Returns the exit code."""
    from freegpu.agent.lanes import say

    arguments = sys.argv[1:] if arguments is None else arguments
    if (
        len(arguments) not in (1, 2)
        or arguments[0] in ("-h", "--help")
        or not all(argument.startswith("--access") for argument in arguments[1:])
    ):
        say("usage: python3 freegpu-agent.pyz PROFILE.json [--access | --access=FILE]")
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    if sys.version_info < (3, 9):
        say(f"needs Python 3.9 or newer, this is {sys.version.split()[0]}")
        return 2

    from freegpu.agent import wire

    try:
        data = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
        profile = wire.Profile.from_json(data if isinstance(data, dict) else {})
        work = Path(profile.work)
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        given = _given(arguments[1:])
    except (OSError, ValueError) as error:
        say(f"the profile {arguments[0]} is not usable: {error}")
        return 2
    lock = _lock(work)
    if lock is None:
        say(f"another agent is at work in {work}")
        return 3
    if given.get("tied"):
        threading.Thread(target=_leave_with_starter, name="tied", daemon=True).start()
    code = _session(profile, work, given)
    os.close(lock)
    return code


def _session(profile: Any, work: Path, given: Dict[str, Any]) -> int:
    from freegpu.agent import loop
    from freegpu.agent.clock import BootClock
    from freegpu.agent.lanes import say
    from freegpu.agent.stores import StoreError, check_home, open_store
    from freegpu.agent.stores.base import ForeignStore

    clock = BootClock()
    started = clock.monotonic()
    access = _access(given, profile)
    while True:
        try:
            store = open_store(profile.store, access)
            check_home(store, profile.home)
            if not _was_here(store, profile):
                break
        except ForeignStore as error:
            say(str(error))
            return 4
        except ValueError as error:
            say(str(error))
            return 2
        except StoreError as error:
            if clock.monotonic() - started > _STORE_PATIENCE_S:
                say(f"the store cannot be reached: {error}")
                return 5
            clock.sleep(1.0)
        else:
            say("this session has had its agent; start a new session")
            return 3
    loop.write_json(work / loop.EXIT, loop.run(profile, store, clock, started))
    return 0


def _leave_with_starter() -> None:
    """A cell whose kernel was restarted has nobody in front of it any more: its agent does not work on unseen."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _given(arguments: List[str]) -> Dict[str, Any]:
    """What `--access` brings: a line on stdin, or a private file that is read once and then gone."""
    if not arguments:
        return {}
    path = arguments[0].partition("=")[2]
    if not path:
        told: Dict[str, Any] = json.loads(sys.stdin.readline())
        return told
    told = json.loads(Path(path).read_text(encoding="utf-8"))
    os.unlink(path)
    return told


def _access(given: Dict[str, Any], profile: Any) -> Any:
    """How to open the store; a token file is read anew each time that a token is wanted."""
    from freegpu.agent.stores import Access
    from freegpu.agent.stores.base import Properties

    path = given.get("token_file")

    def token() -> Tuple[str, float]:
        told = json.loads(Path(str(path)).read_text(encoding="utf-8"))
        return str(told["token"]), max(0.0, float(told["expires_at"]) - time.time())

    secrets = {str(name): str(value) for name, value in (given.get("secrets") or {}).items()}
    known = Properties(**profile.known) if profile.known else None
    return Access(secrets, token if path else None, profile.bandwidth, known)


def _was_here(store: Any, profile: Any) -> bool:
    """Whether an agent has said hello in this session: a second one would number its events like the first."""
    from freegpu.agent import wire
    from freegpu.agent.stores.base import ObjectMissing

    try:
        wire.unpack(store.get(wire.hello_key(profile.session)), bytes.fromhex(profile.key))
    except (ObjectMissing, wire.Unreadable):
        return False
    return True


def _lock(work: Path) -> Optional[int]:
    """Hold the work folder for one agent; None if another one has it."""
    import fcntl

    file = os.open(work / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except OSError:  # a folder on a mount without locks: then only hello.json tells
        return file
    return file


if __name__ == "__main__":
    sys.exit(main())
