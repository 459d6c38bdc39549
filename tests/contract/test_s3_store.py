"""S3Store keeps the store's contract, over three servers; and what is special about a bucket."""

from __future__ import annotations

import base64
import hashlib
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from freegpu.agent.clock import SystemClock
from freegpu.agent.stores import Access, open_store, s3, s3_upload
from freegpu.agent.stores.base import ObjectMissing, Properties, StoreError, StoreGone
from freegpu.agent.stores.http import Http
from freegpu.agent.stores.s3 import S3Store
from freegpu.testing.clock import ManualClock
from freegpu.testing.suites import StoreSuite
from freegpu.testing.suites.store import Shelf
from tests.servers.gate import Gate
from tests.servers.s3 import READER_KEY, READER_SECRET, SECRETS, S3Server

pytestmark = pytest.mark.slow

#: what a probe finds at a server that keeps the whole of S3's promises
GOOD = Properties(
    cas=True, ordered=True, lists_lag=False, max_object=None, min_poll=0.05, server_digest=True
)


class QuickClock(SystemClock):
    """Real time, with short naps where the client would wait for a server that is away."""

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.01))


_numbers = itertools.count()


class OnServer(StoreSuite):
    """Each test has a bucket of its own, and a gate before the server that can be shut."""

    known: Properties | None = None

    #: the fixture that has the server
    running: str

    @pytest.fixture(autouse=True)
    def _at(self, request: pytest.FixtureRequest) -> Iterator[None]:
        server: S3Server = request.getfixturevalue(self.running)
        self.server = server
        self.bucket = f"suite-{type(self).__name__.lower()}-{next(_numbers)}"
        self.gate = Gate(server.port)
        yield
        self.gate.close()

    def begin(self, folder: Path) -> None:
        self.server.client().create_bucket(Bucket=self.bucket)

    def open(self, folder: Path) -> S3Store:
        return S3Store(
            f"//{self.bucket}/home/store?endpoint={self.gate.endpoint}",
            Access(SECRETS, known=self.known),
            http=Http(tries=2, clock=QuickClock()),
        )

    def unplug(self, folder: Path) -> bool:
        self.gate.shut()
        return True

    def plug(self, folder: Path) -> None:
        self.gate.reopen()

    def litter(self, folder: Path) -> bool:
        client = self.server.client()
        for name in ("jobs/x (1).json", "jobs/.hidden", "jobs/folder/", "jobs/ü&<>", "jobs/y+z"):
            client.put_object(Bucket=self.bucket, Key=f"home/store/{name}", Body=b"?")
        client.put_object(Bucket=self.bucket, Key="home/store-of-another/jobs/z", Body=b"?")
        client.create_multipart_upload(Bucket=self.bucket, Key="home/store/jobs/unfinished")
        return True


class TestSeaweed(OnServer):
    """A real server that was probed: conditions hold, digests are its own."""

    known = GOOD

    running = "seaweed_server"


class TestSeaweedUnprobed(OnServer):
    """The same server, of which nobody knows anything yet."""

    running = "seaweed_server"


class TestMoto(OnServer):
    """Conditions hold; there are no digests."""

    known = Properties(
        cas=True, ordered=True, lists_lag=False, max_object=None, min_poll=0.05, server_digest=False
    )

    running = "moto_server"


class TestRclone(OnServer):
    """A server that accepts every condition and keeps none, and replaces in place."""

    running = "rclone_s3_server"

    def test_readers_see_the_old_object_or_the_new_one_and_never_half(self, shelf: Shelf) -> None:
        """Not true of this server: a reader may see half a heartbeat, which its digest then tells."""
        pytest.skip("rclone's server writes over an object in place")

    def litter(self, folder: Path) -> bool:
        jobs = self.server.disk / self.bucket / "home/store/jobs"
        for name in (".DS_Store", "x (1).json", "ü"):
            (jobs / name).write_bytes(b"?")
        return True


# --- what only a bucket has -----------------------------------------------------------------------------


@pytest.fixture
def bucket(seaweed_server: S3Server) -> str:
    name = f"bucket-{next(_numbers)}"
    seaweed_server.client().create_bucket(Bucket=name)
    return name


def opened(server: S3Server, bucket: str, **more: str) -> S3Store:
    store = open_store(server.url(bucket), Access({**SECRETS, **more}, known=GOOD))
    assert isinstance(store, S3Store)
    return store


def test_a_listing_of_many_is_whole_and_goes_page_by_page(moto_server: S3Server) -> None:
    """2,300 objects are three requests of 1,000 at most; a mailbox is one."""
    moto_server.client().create_bucket(Bucket="many")
    keys = [f"sessions/s/outbox/{number:06d}.json" for number in range(2300)]
    writer = opened(moto_server, "many")
    for key in keys:
        writer.put(key, b"")
    gate = Gate(moto_server.port)
    store = S3Store(f"//many/home/store?endpoint={gate.endpoint}", Access(SECRETS))
    assert store.list("sessions") == keys
    assert len(gate.asked) == 3
    assert store.list("sessions/s/outbox", after=keys[2294]) == keys[2295:]
    assert len(gate.asked) == 4
    assert store.list("sessions/s/inbox") == []
    assert len(gate.asked) == 5
    gate.close()


def test_no_bucket_is_ever_made(seaweed_server: S3Server) -> None:
    """This server makes a bucket on the first PUT of an administrator; not with us, not even by a large object."""
    seaweed_server.client().put_object(Bucket="made-by-put", Key="x", Body=b"")
    made = {bucket["Name"] for bucket in seaweed_server.client().list_buckets()["Buckets"]}
    assert "made-by-put" in made, "the server does not do any more what this test is about"
    store = opened(seaweed_server, "never-made")
    for source in (b"small", bytes(65 << 20)):
        with pytest.raises(StoreGone, match="never-made is not there"):
            store.put("jobs/x", source)
        with pytest.raises(StoreGone, match="never-made is not there"):
            store.put_new("jobs/x", source)
    assert not store_digests(store)
    made = {bucket["Name"] for bucket in seaweed_server.client().list_buckets()["Buckets"]}
    assert "never-made" not in made


def store_digests(store: S3Store) -> bool:
    with pytest.raises(StoreGone):
        return store.digests_by_server
    return False


def test_a_bucket_that_goes_away_is_noticed_by_the_next_write_after_any_look(
    seaweed_server: S3Server, bucket: str
) -> None:
    """An agent looks into its mailbox every few seconds; from then on nothing is written into nowhere."""
    store = opened(seaweed_server, bucket)
    store.put("jobs/x", b"1")
    store.delete("jobs/x")
    seaweed_server.client().delete_bucket(Bucket=bucket)
    with pytest.raises(StoreGone):
        store.list("sessions/s/inbox")
    with pytest.raises(StoreGone):
        store.put("jobs/x", b"2")
    names = {found["Name"] for found in seaweed_server.client().list_buckets()["Buckets"]}
    assert bucket not in names


@pytest.mark.parametrize(
    ("name", "computes"),
    [("seaweed_server", True), ("moto_server", False), ("rclone_s3_server", False)],
)
def test_a_server_that_tells_back_what_it_was_sent_computes_no_digests(
    request: pytest.FixtureRequest, name: str, computes: bool
) -> None:
    """rclone's server shows any checksum that came with an object; only refusing a wrong one is proof."""
    server: S3Server = request.getfixturevalue(name)
    server.client().create_bucket(Bucket="digests")
    store = S3Store(server.url("digests").partition(":")[2], Access(SECRETS))
    store.put("jobs/x", b"abc")
    assert store.digests_by_server is computes
    assert store.list("") == ["jobs/x"]


def test_a_digest_that_a_server_was_only_told_is_not_believed(rclone_s3_server: S3Server) -> None:
    """rclone's server hands out the wrong checksum that an object came with; unprobed, the bytes are read."""
    client = rclone_s3_server.client()
    client.create_bucket(Bucket="liar")
    wrong = base64.b64encode(hashlib.sha256(b"other").digest()).decode()
    client.put_object(Bucket="liar", Key="home/store/jobs/x", Body=b"abc", ChecksumSHA256=wrong)
    told = client.head_object(Bucket="liar", Key="home/store/jobs/x", ChecksumMode="ENABLED")
    assert told["ChecksumSHA256"] == wrong, (
        "the server does not do any more what this test is about"
    )
    store = S3Store(rclone_s3_server.url("liar").partition(":")[2], Access(SECRETS))
    stat = store.stat("jobs/x", digest=True)
    assert stat is not None
    assert stat.sha256 == hashlib.sha256(b"abc").hexdigest()


def test_the_digest_of_a_known_server_costs_no_reading(
    seaweed_server: S3Server, bucket: str
) -> None:
    """One HEAD tells size and SHA-256; an object in parts, of which the server has no such digest, is read."""
    gate = Gate(seaweed_server.port)
    store = S3Store(f"//{bucket}/home/store?endpoint={gate.endpoint}", Access(SECRETS, known=GOOD))
    small, large = b"x" * 100_000, random.Random(3).randbytes(65 << 20)
    store.put("jobs/small", small)
    store.put("jobs/large", large)
    gate.asked.clear()
    stat = store.stat("jobs/small", digest=True)
    assert stat is not None
    assert stat.sha256 == hashlib.sha256(small).hexdigest()
    assert [asked.method for asked in gate.asked] == ["HEAD"]
    stat = store.stat("jobs/large", digest=True)
    assert stat is not None
    assert stat.sha256 == hashlib.sha256(large).hexdigest()
    assert {asked.method for asked in gate.asked} == {"HEAD", "GET"}
    gate.close()


def test_what_others_wrote_without_a_digest_is_read(seaweed_server: S3Server, bucket: str) -> None:
    """And a checksum that somebody claims in the object's own metadata is no proof."""
    seaweed_server.client().put_object(
        Bucket=bucket,
        Key="home/store/jobs/x",
        Body=b"abc",
        Metadata={"sha256": "0" * 64, "x-amz-checksum-sha256": "AAAA"},
        ChecksumAlgorithm="CRC32",
    )
    stat = opened(seaweed_server, bucket).stat("jobs/x", digest=True)
    assert stat is not None
    assert stat.sha256 == hashlib.sha256(b"abc").hexdigest()


def test_progress_of_a_large_object_is_told_both_ways(
    seaweed_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    """Growing, to the end, with the object's key."""
    told: list[tuple[str, int, int]] = []
    access = Access(SECRETS, known=GOOD, progress=lambda *step: told.append(step))
    store = S3Store(seaweed_server.url(bucket).partition(":")[2], access)
    size = (64 << 20) + 1
    store.put("jobs/large", bytes(size))
    assert told == sorted(told)
    assert {(key, whole) for key, _, whole in told} == {("jobs/large", size)}
    assert told[-1][1] == size
    told.clear()
    assert store.fetch("jobs/large", tmp_path / "large")[0] == size
    assert told == sorted(told)
    assert len(told) > 3
    assert told[-1] == ("jobs/large", size, size)


def test_the_bandwidth_that_was_asked_for_holds_for_all_parts_together(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 MB in parts that threads send, at 1 MB a second: 20 seconds of the store's clock."""
    monkeypatch.setattr(s3, "SINGLE", 1 << 20)
    monkeypatch.setattr(s3_upload, "PART", 5 << 20)
    moto_server.client().create_bucket(Bucket="slowly")
    clock, data = ManualClock(), random.Random(4).randbytes(20_000_000)
    url = moto_server.url("slowly").partition(":")[2]
    store = S3Store(url, Access(SECRETS, bandwidth=1e6), clock=clock)
    store.put("jobs/x", data)
    # threads that sleep on this clock at once each move it: never shorter than the bytes need
    assert sum(clock.slept) == pytest.approx(clock.monotonic())
    assert clock.monotonic() >= 19.5
    assert store.get("jobs/x") == data


def test_sweep_aborts_old_uploads_of_this_store_only(seaweed_server: S3Server, bucket: str) -> None:
    """Older than asked for by the server's clock, under the prefix, with a key of ours; others stay."""
    client, store = seaweed_server.client(), opened(seaweed_server, bucket)
    for key in ("home/store/jobs/dead", "home/store/a b", "elsewhere/x", "home/store2/x"):
        client.create_multipart_upload(Bucket=bucket, Key=key)
    assert store.sweep(86_400) == 0
    time.sleep(1.1)
    assert store.sweep(1) == 1
    left = {upload["Key"] for upload in client.list_multipart_uploads(Bucket=bucket)["Uploads"]}
    assert left == {"home/store/a b", "elsewhere/x", "home/store2/x"}
    assert store.sweep(0) == 0


# --- keys and permissions -------------------------------------------------------------------------------


def test_a_key_that_may_only_read_is_told_so(seaweed_server: S3Server, bucket: str) -> None:
    """Reading works, writing says what the key must be allowed; it is no trouble that passes."""
    opened(seaweed_server, bucket).put("jobs/x", b"1")
    reader = opened(
        seaweed_server, bucket, AWS_ACCESS_KEY_ID=READER_KEY, AWS_SECRET_ACCESS_KEY=READER_SECRET
    )
    assert reader.get("jobs/x") == b"1"
    with pytest.raises(StoreError, match="must be allowed to list, read, write") as caught:
        reader.put("jobs/x", b"2")
    assert not caught.value.transient
    assert READER_KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"AWS_ACCESS_KEY_ID": "nobodys0123456789"}, "check AWS_ACCESS_KEY_ID"),
        ({"AWS_SECRET_ACCESS_KEY": "guessed0123456789"}, "check AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_a_wrong_key_is_named_by_every_call(
    seaweed_server: S3Server, bucket: str, tmp_path: Path, wrong: dict[str, str], sentence: str
) -> None:
    """Also by those that ask with HEAD, whose answers have no words; and the key itself is never in it."""
    store = opened(seaweed_server, bucket, **wrong)
    for call in (
        lambda: store.get("jobs/x"),
        lambda: store.fetch("jobs/x", tmp_path / "x"),
        lambda: store.stat("jobs/x"),
        lambda: store.put("jobs/x", b"x"),
        lambda: store.put_new("jobs/x", b"x"),
        lambda: store.delete("jobs/x"),
        lambda: store.list("jobs"),
    ):
        with pytest.raises(StoreError, match=sentence) as caught:
            call()
        assert not isinstance(caught.value, (ObjectMissing, StoreGone))
        assert not caught.value.transient
        for secret in (*SECRETS.values(), *wrong.values()):
            assert secret not in str(caught.value)


class WrongClock(SystemClock):
    """A machine whose clock is an hour late."""

    def time(self) -> float:
        return super().time() - 3600


def test_a_clock_that_is_wrong_is_named(seaweed_server: S3Server, bucket: str) -> None:
    """With how far off it is: no signature of this machine will ever be believed."""
    store = S3Store(
        seaweed_server.url(bucket).partition(":")[2], Access(SECRETS), clock=WrongClock()
    )
    for call in (lambda: store.get("jobs/x"), lambda: store.put("jobs/x", b"")):
        with pytest.raises(
            StoreError, match=r"clock is wrong \(60 minutes behind\).*set the clock"
        ):
            call()
