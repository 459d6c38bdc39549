"""What it costs to put an object into an S3 store, beside boto3. Exit code 1 if a limit is passed.

    python benchmarks/store_s3.py [ROUNDS] [--tmpdir DIR]

A SeaweedFS on this machine takes 256 MiB again and again, by turns from freegpu's store and from boto3 (upload_file
with its own defaults, or with the same part size and threads as ours, whichever is faster). Processor time is that
of the client's process, which hashes too: freegpu's store sends a SHA-256 that the server checks. The wall is shared
with the server, so the rate is compared pair by pair and the median of the ratios counts.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from freegpu.agent.stores import Access, open_store
from freegpu.agent.stores.base import Properties
from freegpu.agent.stores.s3_upload import PART
from tests.servers.s3 import SECRETS, S3Server, seaweed_server

SIZE = 256 << 20
CPU_S_PER_GB = 1.0
LEAST_RATE = 0.8
SMALL = 200


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """(wall, processor) seconds."""

    def processor() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    before, began = processor(), time.perf_counter()
    call()
    return time.perf_counter() - began, processor() - before


def compare(server: S3Server, folder: Path, rounds: int) -> bool:
    from boto3.s3.transfer import TransferConfig

    client: Any = server.client()
    client.create_bucket(Bucket="bench")
    source = folder / "source"
    with open(source, "wb") as file:
        for _ in range(SIZE >> 20):
            file.write(os.urandom(1 << 20))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    known = Properties(True, True, False, None, 1.0, True)
    store = open_store(server.url("bench"), Access(SECRETS, known=known))
    alike = TransferConfig(multipart_chunksize=PART, max_concurrency=4)
    rivals: dict[str, Callable[[str], object]] = {
        "boto3": lambda name: client.upload_file(str(source), "bench", name),
        "boto3, our parts": lambda name: client.upload_file(
            str(source), "bench", name, Config=alike
        ),
    }
    puts: dict[str, list[tuple[float, float]]] = {name: [] for name in ("freegpu", *rivals)}
    gets: dict[str, list[tuple[float, float]]] = {"freegpu": [], "boto3": []}
    for turn in range(rounds + 1):
        order = list(puts) if turn % 2 else list(reversed(puts))
        for name in order:
            key = f"jobs/{turn}-{order.index(name)}"
            put = rivals.get(name)
            found = timed(lambda key=key, put=put: put(key) if put else store.put(key, source))  # type: ignore[misc]
            if turn:  # the first round warms up
                puts[name].append(found)
            if name == "freegpu":
                back = timed(lambda key=key: store.fetch(key, folder / "back"))  # type: ignore[misc]
                gets["freegpu"].append(back)
                theirs = timed(
                    lambda key=key: client.download_file(  # type: ignore[misc]
                        "bench", f"home/store/{key}", str(folder / "back2")
                    )
                )
                gets["boto3"].append(theirs)
                if hashlib.sha256((folder / "back").read_bytes()).hexdigest() != digest:
                    sys.exit("what came back is not what was put")
                store.delete(key)
            else:
                client.delete_object(Bucket="bench", Key=key)
    gb = SIZE / 1e9
    for what, runs in (("put", puts), ("get", gets)):
        for name, found in runs.items():
            wall, cpu = (statistics.median(values) for values in zip(*found, strict=True))
            print(
                f"{what} {name:17} {gb * 1000 / wall:6.0f} MB/s  {cpu / gb:5.2f} s of processor a GB"
            )
    begun = timed(lambda: [store.put(f"small/{n}", b"x" * 500) for n in range(SMALL)])[0]
    theirs_began = timed(
        lambda: [
            client.put_object(Bucket="bench", Key=f"small-{n}", Body=b"x" * 500)
            for n in range(SMALL)
        ]
    )[0]
    print(f"small puts a second: freegpu {SMALL / begun:.0f}, boto3 {SMALL / theirs_began:.0f}")
    cpu = statistics.median(own for _, own in puts["freegpu"]) / gb
    rates, cpus = [], []
    for name in rivals:
        pairs = list(zip(puts["freegpu"], puts[name], strict=True))
        rates.append(statistics.median(other[0] / own[0] for own, other in pairs))
        cpus.append(statistics.median(own[1] / other[1] for own, other in pairs))
        print(
            f"rate {rates[-1]:.2f} of {name} (limit {LEAST_RATE}), processor {cpus[-1]:.2f} of it (limit 1)"
        )
    print(f"put with its SHA-256: {cpu:.2f} s of processor a GB (limit {CPU_S_PER_GB})")
    return cpu <= CPU_S_PER_GB and min(rates) >= LEAST_RATE and max(cpus) < 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", nargs="?", type=int, default=7)
    parser.add_argument("--tmpdir", default=None)
    asked = parser.parse_args()
    os.environ["NO_PROXY"] = "127.0.0.1"
    with tempfile.TemporaryDirectory(dir=asked.tmpdir) as name:
        (Path(name) / "server").mkdir()
        with seaweed_server(Path(name) / "server") as server:
            within = compare(server, Path(name), asked.rounds)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
