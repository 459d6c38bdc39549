"""How fast big files cross ssh, beside OpenSSH's sftp. Exit code 1 if a rate is below 0.9 of it.

    python benchmarks/ssh_transfer.py [ROUNDS] [--mib N] [--tmpdir DIR]

A real sshd on this machine takes and gives a file of 256 MiB again and again: by OpenSSH's own `sftp -b`, by the `sftp:`
store (which hashes what comes and syncs what goes, so it is held against `put -f`, which syncs too), and as a host's agent is sent (checked there by its SHA-256). The
machine is shared with the server and with whoever else works on it, so rates are compared within a round, and the median
of the ratios counts.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from freegpu.adapters.ssh import SshAdapter
from freegpu.adapters.stores.sftp import SftpStore
from freegpu.agent.stores.base import Access, Properties
from freegpu.clock import SystemClock
from freegpu.testing.ssh_host import Sshd

LEAST = 0.9
KNOWN = Properties(cas=True, ordered=True, lists_lag=False, max_object=None, min_poll=0.2)


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def openssh(server: Sshd, batch: str) -> None:
    words = [
        "sftp",
        "-q",
        "-b",
        "-",
        "-P",
        str(server.port),
        "-i",
        f"{server.home}/.ssh/id_ed25519",
    ]
    words += ["-F", "none", "-o", f"UserKnownHostsFile={server.home}/.ssh/known_hosts"]
    subprocess.run(
        [*words, f"{server.user}@127.0.0.1"],
        input=batch,
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def compare(server: Sshd, folder: Path, rounds: int, mib: int) -> bool:
    source, back = folder / "source", folder / "back"
    with open(source, "wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    (folder / "store" / "jobs").mkdir(parents=True)
    where = server.url(folder / "store").removeprefix("sftp:")
    store = SftpStore(where, Access(known=KNOWN))
    store.put("freegpu.json", b"{}")
    options = {"host": server.host}
    adapter = SshAdapter.from_options("host", options, home=folder / "h", clock=SystemClock())
    agents = folder / "far" / ".freegpu" / "agents"

    def agent() -> None:
        adapter._send_agent({"path": str(source), "sha256": digest})

    runs: dict[str, Callable[[], object]] = {
        "put openssh": lambda: openssh(server, f"put {source} {folder}/theirs\n"),
        "put openssh-f": lambda: openssh(server, f"put -f {source} {folder}/theirs\n"),
        "put store": lambda: store.put("jobs/x", source),
        "put agent": agent,
        "get openssh": lambda: openssh(server, f"get {folder}/store/jobs/x {folder}/theirs2\n"),
        "get store": lambda: store.fetch("jobs/x", back),
    }
    found: dict[str, list[float]] = {name: [] for name in runs}
    adapter.offers()
    for turn in range(rounds + 1):
        # the object to get must be there before the first get
        order = list(runs) if turn % 2 == 0 else ["get store", "get openssh", *list(runs)[3::-1]]
        for name in order:
            if name.startswith("put"):
                for old in (folder / "theirs", folder / "store/jobs/x", agents / f"{digest}.pyz"):
                    if name.startswith("put openssh") or old.name != "x":
                        old.unlink(missing_ok=True)
            took = timed(runs[name])
            if turn:  # the first round warms up
                found[name].append(took)
        if hashlib.sha256(back.read_bytes()).hexdigest() != digest:
            sys.exit("what came back is not what was put")
    (agents / f"{digest}.pyz").unlink(missing_ok=True)
    store.close()
    adapter.close()
    within = True
    for name, times in found.items():
        rate = mib / statistics.median(times)
        line = f"{name:13} {rate:6.0f} MiB/s"
        kind, who = name.split()
        if not who.startswith("openssh"):
            # a store's objects are synced before they count: so is what is put with -f
            other = f"{kind} openssh{'-f' if name == 'put store' else ''}"
            pairs = zip(found[other], times, strict=True)
            ratio = statistics.median(theirs / ours for theirs, ours in pairs)
            within = within and ratio >= LEAST
            line += f"  {ratio:.2f} of {other} (limit {LEAST})"
        print(line)
    return within


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--tmpdir", default=None)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.tmpdir) as name:
        folder = Path(name)
        (folder / "server").mkdir()
        (folder / "far").mkdir()
        os.environ["HOME"] = str(folder / "server" / "home")
        os.environ.pop("SSH_AUTH_SOCK", None)
        with Sshd(folder / "server", extra=f"SetEnv HOME={folder}/far") as server:
            within = compare(server, folder, asked.rounds, asked.mib)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
