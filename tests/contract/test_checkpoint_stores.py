"""Checkpoints through the stores that a network lies before: several requests at once, and every byte back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from freegpu.agent import wire
from freegpu.agent.snapshot import Item
from freegpu.agent.stores import Access
from freegpu.agent.stores.base import Properties, Store, StoreError
from freegpu.agent.stores.drive import DriveStore
from freegpu.agent.stores.s3 import S3Store
from freegpu.agent.transfer import Known, download, upload
from freegpu.testing.drive_server import DriveServer
from tests.servers.s3 import SECRETS, S3Server

GOOD = Properties(
    cas=True, ordered=True, lists_lag=False, max_object=None, min_poll=0.05, server_digest=True
)


def a_checkpoint(folder: Path, seed: int) -> list[Item]:
    """A large file, of which a quarter is another with each seed, and a hundred small ones."""
    rng, items = random.Random(seed), []
    steady = random.Random(0)
    contents = {f"small/{n:03}": rng.randbytes(1000) for n in range(100)}
    contents["model.bin"] = steady.randbytes(30_000_000) + rng.randbytes(10_000_000)
    for name, data in contents.items():
        path = folder / str(seed) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        items.append(Item(name, path, len(data), 10**18, 0o640))
    return items


def there_and_back(store: Store, tmp_path: Path) -> int:
    """Two checkpoints sent, the second restored by somebody who knows only its manifest; what the second cost."""
    known: Known = {}
    upload(store, "a-1", a_checkpoint(tmp_path, 1), known)
    before = {part.key for part in known.values()}
    items = a_checkpoint(tmp_path, 2)
    for _ in range(10):
        try:
            files = upload(store, "a-1", items, known)
            break
        except StoreError:
            continue
    manifest = wire.Manifest("j-1", "a-1", 1, 2, None, 0.0, files)
    for _ in range(10):
        try:
            download(store, manifest, tmp_path / "into")
            break
        except StoreError:
            continue
    for item in items:
        assert (tmp_path / "into" / item.path).read_bytes() == item.source.read_bytes()
    blobs = {part.key: part for part in manifest.blobs()}
    for key, part in blobs.items():
        found = store.stat(key, digest=True)
        assert found
        assert (found.size, found.sha256) == (part.size, part.sha256)
    return sum(part.size for key, part in blobs.items() if key not in before)


@pytest.mark.slow
def test_through_a_drive(tmp_path: Path) -> None:
    """Twice: the second checkpoint costs what is new in it, and no name has a twin."""
    with DriveServer() as server:
        access = Access(secrets={"FREEGPU_DRIVE": server.oauth.grant("app")})
        store = DriveStore(f"freegpu?endpoint={server.url}", access)
        store.put("freegpu.json", b"{}")
        assert there_and_back(store, tmp_path) < 15_000_000
        keys = store.list("attempts")
        assert len(keys) == len(set(keys))


@pytest.mark.slow
def test_through_a_bucket(seaweed_server: S3Server, tmp_path: Path) -> None:
    """A real server that computes the digests itself."""
    seaweed_server.client().create_bucket(Bucket="checkpoints")
    store = S3Store(
        f"//checkpoints/store?endpoint={seaweed_server.endpoint}", Access(SECRETS, known=GOOD)
    )
    store.put("freegpu.json", b"{}")
    assert there_and_back(store, tmp_path) < 15_000_000
