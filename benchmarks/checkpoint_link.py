"""How near sending and restoring a checkpoint come to the speed of the link.

    python benchmarks/checkpoint_link.py [--megabytes N] [--rate MB/S] [--latency S] [--least SHARE]

A store behind a pretended link: each request waits for the latency, and all bytes share the rate. Prints a line of
JSON for each direction, and what one request at a time with parts of 64 MiB would take; exits with 1 when
less than --least of the rate is reached.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from freegpu.agent import wire
from freegpu.agent.snapshot import Item
from freegpu.agent.stores.base import Properties, Stat
from freegpu.agent.transfer import download, upload


class Link:
    """Objects in memory, far away."""

    properties = Properties(
        cas=True, ordered=True, lists_lag=False, max_object=None, min_poll=1.0, server_digest=True
    )

    def __init__(self, rate: float, latency: float) -> None:
        self.rate = rate
        self.latency = latency
        self.objects: dict[str, bytes] = {}
        self.requests = 0
        self._free_at = 0.0
        self._lock = threading.Lock()

    def _carry(self, amount: int) -> None:
        with self._lock:
            self.requests += 1
            begin = max(time.monotonic() + self.latency, self._free_at)
            self._free_at = begin + amount / self.rate
            until = self._free_at
        time.sleep(max(0.0, until - time.monotonic()))

    def put_new(self, key: str, source: bytes) -> bool:
        self._carry(len(source))
        return self.objects.setdefault(key, source) is source

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        data = self.objects[key][start:end]
        self._carry(len(data))
        return data

    def stat(self, key: str, digest: bool = False) -> Stat | None:
        self._carry(0)
        data = self.objects.get(key)
        return Stat(len(data), hashlib.sha256(data).hexdigest()) if data is not None else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rate", type=float, default=60.0)
    parser.add_argument("--latency", type=float, default=0.15)
    parser.add_argument("--least", type=float, default=0.6)
    given = parser.parse_args()
    size, rate = given.megabytes * 1_000_000, given.rate * 1e6
    shares = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        source = root / "model.bin"
        rng = random.Random(1)
        with open(source, "wb") as file:
            for _ in range(given.megabytes):
                file.write(rng.randbytes(1_000_000))
        link = Link(rate, given.latency)
        item = Item("model.bin", source, size, 0, 0o644)
        began = time.perf_counter()
        files = upload(link, "a-1", [item], {})  # type: ignore[arg-type]
        times = {"send": (time.perf_counter() - began, link.requests)}
        manifest = wire.Manifest("j-1", "a-1", 1, 1, None, 0.0, files)
        link.requests = 0
        began = time.perf_counter()
        download(link, manifest, root / "into")  # type: ignore[arg-type]
        times["restore"] = (time.perf_counter() - began, link.requests)
        for direction, (seconds, requests) in times.items():
            single = size / rate + -(-size // (64 << 20)) * given.latency + 2 * size / 1.2e9
            shares.append(size / rate / seconds)
            print(
                json.dumps(
                    {
                        "direction": direction,
                        "mb": given.megabytes,
                        "seconds": round(seconds, 2),
                        "share_of_link": round(shares[-1], 3),
                        "requests": requests,
                        "one_at_a_time_s": round(single, 2),
                    }
                )
            )
    return int(min(shares) < given.least)


if __name__ == "__main__":
    sys.exit(main())
