"""S3Store over a real server whose network fails: whole objects, no twins, right answers, no secrets told."""

from __future__ import annotations

import hashlib
import http.server
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from freegpu.agent.clock import SystemClock
from freegpu.agent.stores import Access, s3, s3_download, s3_upload
from freegpu.agent.stores.base import ObjectMissing, Properties, StoreError, StoreFull, StoreGone
from freegpu.agent.stores.http import Http, Reply
from freegpu.agent.stores.s3 import S3Store
from tests.servers.gate import Asked, Fault, Gate, answer
from tests.servers.s3 import SECRETS, S3Server

pytestmark = pytest.mark.slow

GOOD = Properties(
    cas=True, ordered=True, lists_lag=False, max_object=None, min_poll=0.05, server_digest=True
)
#: the smallest part that the server takes
PART = 5 << 20


class NotedClock(SystemClock):
    """Real time, but what would be waited is only noted."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        time.sleep(0.005)


class Place:
    """A bucket of one test, the gate before it, and a look behind the gate."""

    def __init__(self, server: S3Server, bucket: str) -> None:
        self.server, self.bucket = server, bucket
        self.gate = Gate(server.port)
        self.clock = NotedClock()

    def open(self, known: Properties | None = GOOD) -> S3Store:
        return S3Store(
            f"//{self.bucket}/p?endpoint={self.gate.endpoint}",
            Access(SECRETS, known=known),
            http=Http(clock=self.clock),
        )

    def really(self, key: str) -> bytes:
        """The object's bytes as another client has them."""
        found: bytes = (
            self.server.client().get_object(Bucket=self.bucket, Key=f"p/{key}")["Body"].read()
        )
        return found

    def overwrite(self, key: str, data: bytes) -> None:
        """As another freegpu does it."""
        self.server.client().put_object(
            Bucket=self.bucket, Key=f"p/{key}", Body=data, Metadata={"freegpu": "another"}
        )

    def uploads(self) -> int:
        """Multipart uploads that are left behind."""
        found = self.server.client().list_multipart_uploads(Bucket=self.bucket)
        return len(found.get("Uploads", []))

    def count(self, method: str, part: str = "") -> int:
        return sum(a.method == method and part in a.target for a in self.gate.asked)


@pytest.fixture
def place(
    seaweed_server: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    # so that "large" need not be large here
    monkeypatch.setattr(s3, "SINGLE", PART)
    monkeypatch.setattr(s3_download, "PIECE", PART)
    monkeypatch.setattr(s3_download, "_LONG_PIECE", PART)
    monkeypatch.setattr(s3_upload, "PART", PART)
    bucket = "faults-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:16]
    seaweed_server.client().create_bucket(Bucket=bucket)
    made = Place(seaweed_server, bucket)
    yield made
    made.gate.close()


LARGE = random.Random(5).randbytes(3 * PART + 77)


def put(asked: Asked) -> bool:
    return asked.method == "PUT" and "partNumber" not in asked.target


def part(number: int) -> Callable[[Asked], bool]:
    return lambda asked: asked.method == "PUT" and f"partNumber={number}&" in asked.target


def completion(asked: Asked) -> bool:
    return asked.method == "POST" and "uploadId" in asked.target


def beginning(asked: Asked) -> bool:
    return asked.method == "POST" and "uploads" in asked.target


def ranged(start: int) -> Callable[[Asked], bool]:
    return lambda asked: (asked.header("range") or "").startswith(f"bytes={start}-")


def get(asked: Asked) -> bool:
    return asked.method == "GET" and "list-type" not in asked.target


# --- uploads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 100_000, PART - 1])
def test_a_cut_in_the_middle_of_a_part_costs_that_part_only(
    place: Place, tmp_path: Path, at: int
) -> None:
    """The part is sent again, the others are not, and the object is right."""
    (tmp_path / "large").write_bytes(LARGE)
    place.gate.once(part(3), Fault(cut_request=at))
    place.open().put("jobs/x", tmp_path / "large")
    assert place.really("jobs/x") == LARGE
    assert [place.count("PUT", f"partNumber={n}&") for n in range(1, 5)] == [1, 1, 2, 1]
    assert place.uploads() == 0


def test_a_cut_in_the_middle_of_a_small_upload_shows_nothing_half(place: Place) -> None:
    """Sent again from its beginning."""
    place.gate.once(put, Fault(cut_request=70_000), Fault(cut_request=0))
    place.open().put("jobs/x", LARGE[:150_000])
    assert place.really("jobs/x") == LARGE[:150_000]
    assert place.count("PUT") == 3


@pytest.mark.parametrize(
    "kind", [part(2), beginning, completion], ids=["part", "begin", "complete"]
)
def test_a_lost_answer_of_any_step_of_a_large_put_is_survived(
    place: Place, kind: Callable[[Asked], bool]
) -> None:
    """The server did it and we were not told; one object, whole, and at most an empty upload for the sweep."""
    place.gate.once(kind, Fault(lose_answer=True))
    store = place.open()
    store.put("jobs/x", LARGE)
    assert place.really("jobs/x") == LARGE
    assert place.uploads() == (1 if kind is beginning else 0)
    time.sleep(0.01)
    store.sweep(-5)
    assert place.uploads() == 0
    assert place.really("jobs/x") == LARGE


def test_parts_that_fail_for_good_leave_nothing_behind(place: Place) -> None:
    """The error comes out, the upload is aborted, and the old object stays as it was."""
    store = place.open()
    store.put("jobs/x", b"old")
    place.gate.rule = lambda asked: (
        Fault(answer=answer(403, "AccessDenied")) if part(4)(asked) else None
    )
    with pytest.raises(StoreError, match="must be allowed"):
        store.put("jobs/x", LARGE)
    assert place.really("jobs/x") == b"old"
    assert place.uploads() == 0


def test_an_error_that_comes_with_200_is_an_error(place: Place) -> None:
    """CompleteMultipartUpload may say so after it began to answer: "later" is repeated, the rest is raised."""
    store = place.open()
    place.gate.once(completion, Fault(answer=answer(200, "InternalError")))
    store.put("jobs/x", LARGE)
    assert place.really("jobs/x") == LARGE
    assert place.count("POST", "uploadId") == 2
    place.gate.once(completion, Fault(answer=answer(200, "AccessDenied")))
    with pytest.raises(StoreError, match="AccessDenied"):
        store.put("jobs/y", LARGE)
    assert store.stat("jobs/y") is None
    assert place.uploads() == 0


def test_a_file_that_changes_while_it_is_sent_is_never_stored_mixed(
    place: Place, tmp_path: Path
) -> None:
    """The server compares with the digest that was signed, and refuses."""
    source = tmp_path / "source"
    source.write_bytes(b"a" * 100_000)
    place.gate.rule = lambda asked: (
        Fault(answer=answer(400, "XAmzContentSHA256Mismatch")) if put(asked) else None
    )
    store = place.open()
    with pytest.raises(StoreError, match="XAmzContentSHA256Mismatch") as caught:
        store.put("jobs/x", source)
    assert caught.value.transient
    place.gate.rule = None
    # and this server really does compare
    real = s3_upload.body_of

    def late(*which: object) -> object:
        told = real(*which)  # type: ignore[arg-type]
        source.write_bytes(b"b" * 100_000)
        return told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s3, "body_of", late)
        with pytest.raises(StoreError):
            store.put("jobs/x", source)
    assert store.stat("jobs/x") is None


# --- put_new --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [GOOD, None], ids=["known", "unprobed"])
@pytest.mark.parametrize("size", [1000, len(LARGE)], ids=["small", "large"])
def test_put_new_whose_answer_was_lost_answers_true(
    place: Place, known: Properties | None, size: int
) -> None:
    """The second try is told that there is one already: ours. Somebody else's is still False."""
    place.gate.once(put if size == 1000 else completion, Fault(lose_answer=True))
    store = place.open(known)
    assert store.put_new("jobs/x", LARGE[:size]) is True
    assert place.really("jobs/x") == LARGE[:size]
    assert store.put_new("jobs/x", LARGE[:size]) is False
    assert place.open(known).put_new("jobs/x", b"other") is False
    assert place.uploads() == 0


@pytest.mark.parametrize("size", [1000, len(LARGE)], ids=["small", "large"])
def test_put_new_that_failed_on_the_way_and_found_another_s_object_answers_false(
    place: Place, size: int
) -> None:
    """Our first try never arrived; the object that stands there now is a stranger's, even with the same bytes."""
    data = LARGE[:size]
    place.gate.once(
        put if size == 1000 else completion,
        Fault(cut_request=0),
        Fault(before=lambda: place.overwrite("jobs/x", data)),
    )
    assert place.open().put_new("jobs/x", data) is False


def test_a_conflict_is_tried_again(place: Place) -> None:
    """409: two conditional writes at once, nobody won yet."""
    busy = [Fault(answer=answer(409, "ConditionalRequestConflict")), Fault(answer=answer(409))]
    place.gate.once(put, *busy)
    assert place.open().put_new("jobs/x", b"1") is True
    assert place.count("PUT") == 3


def test_a_server_without_conditions_is_written_to_without_and_asked_only_once(
    place: Place,
) -> None:
    """501 to If-None-Match: then the look before the write is all there is; a probed promise is not given up."""
    refuse = Fault(answer=answer(501, "NotImplemented"))
    place.gate.rule = lambda asked: (
        refuse if asked.header("if-none-match") or asked.header("x-amz-checksum-sha256") else None
    )
    store = place.open(known=None)
    assert store.put_new("jobs/x", b"1") is True
    assert store.put_new("jobs/x", b"2") is False
    assert store.put_new("jobs/y", b"3") is True
    assert place.count("PUT") == 4  # two to find out
    with pytest.raises(StoreError, match="NotImplemented"):
        place.open(GOOD).put_new("jobs/z", b"4")


def test_the_headers_that_backblaze_refuses_are_done_without(place: Place, tmp_path: Path) -> None:
    """Its words, as public reports quote them: 400 for anything about checksums, 501 for conditions."""
    message = b"<Error><Code>InvalidArgument</Code><Message>Unsupported header 'x-amz-checksum-sha256' received for this API call.</Message></Error>"

    def rule(asked: Asked) -> Fault | None:
        if "x-amz-checksum" in asked.head.lower():
            return Fault(answer=answer(400, body=message if asked.method != "HEAD" else b""))
        if asked.header("if-none-match"):
            return Fault(answer=answer(501, "NotImplemented"))
        return None

    place.gate.rule = rule
    store = place.open(known=None)
    for size in (1000, len(LARGE)):
        data = LARGE[:size]
        store.put(f"jobs/{size}", data)
        assert store.put_new(f"jobs/new-{size}", data) is True
        assert store.put_new(f"jobs/new-{size}", data) is False
        stat = store.stat(f"jobs/{size}", digest=True)
        assert stat is not None
        assert stat.sha256 == hashlib.sha256(data).hexdigest()
        assert store.fetch(f"jobs/new-{size}", tmp_path / "x") == (size, stat.sha256)
    assert store.digests_by_server is False
    assert len(store.list("")) == 4


@pytest.mark.parametrize("known", [GOOD, None], ids=["known", "unprobed"])
@pytest.mark.parametrize("size", [1000, len(LARGE)], ids=["small", "large"])
def test_without_metadata_a_lost_answer_is_told_from_another_s_object_by_its_bytes(
    place: Place, known: Properties | None, size: int
) -> None:
    """Hugging Face's buckets keep none. Without a lost answer the same bytes are still another's object."""
    place.gate.hide = "x-amz-meta-freegpu"
    data, kind = LARGE[:size], put if size == 1000 else completion
    place.gate.once(kind, Fault(lose_answer=True))
    assert place.open(known).put_new("jobs/x", data) is True
    assert place.open(known).put_new("jobs/x", data) is False
    other = bytes(reversed(data))
    swap = Fault(before=lambda: place.overwrite("jobs/y", other), lose_answer=True)
    place.gate.once(kind, swap)
    assert place.open(known).put_new("jobs/y", data) is False
    assert place.really("jobs/y") == other


def test_a_large_object_is_looked_for_even_where_conditions_are_known_to_hold(place: Place) -> None:
    """A probe tries small ones, and Hugging Face's buckets mind the condition of a PUT but not of a completion."""
    place.overwrite("jobs/x", b"1")
    assert place.open(GOOD).put_new("jobs/x", LARGE) is False
    assert place.count("POST") == 0


# --- downloads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 100_000])
def test_a_cut_in_the_middle_of_a_download_costs_that_piece_only(
    place: Place, tmp_path: Path, at: int
) -> None:
    """The bytes are right and nothing is doubled; first, middle and last piece."""
    place.overwrite("jobs/x", LARGE)
    for turn, start in enumerate((0, 2 * PART, 3 * PART)):
        place.gate.asked.clear()
        place.gate.once(
            ranged(start),
            Fault(cut_answer=min(at, 70)),
            Fault(cut_answer=min(at, 70) if start == 3 * PART else at),
        )
        target = tmp_path / f"target-{turn}"
        told = place.open().fetch("jobs/x", target)
        assert told == (len(LARGE), hashlib.sha256(LARGE).hexdigest())
        assert target.read_bytes() == LARGE
        assert place.count("GET") == 4 + 2
    place.gate.once(get, Fault(cut_answer=at))
    assert place.open().get("jobs/x", 10, 150_000) == LARGE[10:150_000]
    place.gate.once(get, Fault(cut_answer=at))
    stat = place.open(known=None).stat("jobs/x", digest=True)
    assert stat is not None
    assert stat.sha256 == hashlib.sha256(LARGE).hexdigest()


def test_an_object_that_is_replaced_while_it_is_fetched_is_never_mixed(
    place: Place, tmp_path: Path
) -> None:
    """It begins anew and ends with the one or the other; so does a digest that is read."""
    other = bytes(reversed(LARGE))
    place.overwrite("jobs/x", LARGE)
    swap = Fault(before=lambda: place.overwrite("jobs/x", other))
    place.gate.once(lambda asked: f"bytes={2 * PART}-" in (asked.header("range") or ""), swap)
    told = place.open().fetch("jobs/x", tmp_path / "x")
    assert told == (len(other), hashlib.sha256(other).hexdigest())
    assert (tmp_path / "x").read_bytes() == other
    pieces = [asked for asked in place.gate.asked if get(asked) and not ranged(0)(asked)]
    assert all(
        asked.header("if-match") for asked in pieces
    )  # the old one's bytes are not even sent
    shorter = LARGE[:PART]
    swap = Fault(before=lambda: place.overwrite("jobs/x", shorter))
    place.gate.once(get, swap)
    stat = place.open(known=None).stat("jobs/x", digest=True)
    assert stat is not None
    assert (stat.size, stat.sha256) == (len(shorter), hashlib.sha256(shorter).hexdigest())


def test_an_object_that_is_replaced_all_the_time_ends_in_an_error(
    place: Place, tmp_path: Path
) -> None:
    """Not in a loop, and not in a mixture."""
    place.overwrite("jobs/x", LARGE)
    turn = iter(range(1000))

    def swap() -> None:
        place.overwrite("jobs/x", LARGE[: 2 * PART] + bytes(PART + next(turn)))

    place.gate.rule = lambda asked: (
        Fault(before=swap) if f"bytes={PART}-" in (asked.header("range") or "") else None
    )
    with pytest.raises(StoreError, match="being replaced all the time"):
        place.open().fetch("jobs/x", tmp_path / "x")


def test_without_a_tag_an_object_is_read_in_one_request(place: Place, tmp_path: Path) -> None:
    """Nobody could tell whether pieces are of one version."""
    place.overwrite("jobs/x", LARGE)
    place.gate.hide = "etag"
    told = place.open().fetch("jobs/x", tmp_path / "x")
    assert told == (len(LARGE), hashlib.sha256(LARGE).hexdigest())
    assert (tmp_path / "x").read_bytes() == LARGE
    assert [asked.header("range") for asked in place.gate.asked] == [
        f"bytes=0-{PART - 1}",
        f"bytes=0-{len(LARGE) - 1}",
    ]


def test_ranges_that_are_not_those_asked_for_are_refused(place: Place, tmp_path: Path) -> None:
    """Another beginning, or an object of untold size: an error, and never wrong bytes."""
    store = place.open()
    store.put("jobs/x", b"0123456789")
    for told in ("bytes 0-3/10", "bytes 3-6/*", "nonsense"):
        spoilt = answer(206, headers=f"Content-Range: {told}\r\n", body=b"0123")
        place.gate.once(get, Fault(answer=spoilt))
        with pytest.raises(StoreError, match=r"another range|how large"):
            store.get("jobs/x", 3, 7)
    assert store.get("jobs/x", 3, 7) == b"3456"


class Cdn:
    """Where a server keeps its bytes: another address, with ranges, and tags of its own."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.refuse = False
        cdn = self

        class Answer(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                cdn.seen.append(
                    (self.path, {name.lower(): told for name, told in self.headers.items()})
                )
                data = cdn.objects[self.path.partition("?")[0]]
                found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "bytes=0-"))
                assert found
                start, end = int(found[1]), min(int(found[2] or len(data)), len(data) - 1)
                body = data[start : end + 1]
                self.send_response(403 if cdn.refuse else 206)
                self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
                self.send_header("ETag", f'"cdn-{hashlib.sha256(data).hexdigest()[:8]}"')
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def rule(self, asked: Asked) -> Fault | None:
        if not get(asked):
            return None
        link = f"http://127.0.0.1:{self._server.server_port}/xet{asked.target.partition('?')[0]}"
        head = f"Location: {link}?X-Signature=hunter2\r\n"
        return Fault(answer=answer(302, headers=head))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_downloads_that_are_sent_on_to_a_cdn_arrive_without_our_credentials(
    place: Place, tmp_path: Path
) -> None:
    """As Hugging Face does it: every read works, and what goes there is the range and nothing else of ours."""
    cdn = Cdn()
    try:
        store = place.open(known=None)
        store.put("jobs/x", LARGE)
        cdn.objects[f"/xet/{place.bucket}/p/jobs/x"] = LARGE
        place.gate.rule = cdn.rule
        wanted = hashlib.sha256(LARGE).hexdigest()
        assert store.get("jobs/x", 5, 1000) == LARGE[5:1000]
        assert store.get("jobs/x") == LARGE
        assert store.fetch("jobs/x", tmp_path / "x") == (len(LARGE), wanted)
        assert (tmp_path / "x").read_bytes() == LARGE
        stat = store.stat("jobs/x", digest=True)
        assert stat is not None
        assert stat.sha256 == wanted
        assert len(cdn.seen) >= 8
        assert {name for _, told in cdn.seen for name in told} <= {"host", "range"}
        cdn.refuse = True
        with pytest.raises(
            StoreError, match=r"where 127\.0\.0\.1:\d+ keeps it, answered 403"
        ) as caught:
            store.get("jobs/x")
        assert caught.value.transient
        assert "hunter2" not in f"{caught.value}{caught.value.__cause__}{caught.value.__context__}"
    finally:
        cdn.close()


def test_a_download_never_leaves_tls(place: Place) -> None:
    """A link from a secure server to a plain one is not followed; nor is a region's redirect."""
    store = S3Store("//bucket/p?endpoint=https://h.example", Access(SECRETS))
    for reply in (
        Reply(302, {"location": f"{place.gate.endpoint}/x"}, b""),
        Reply(302, {"location": "file:///etc/passwd"}, b""),
        Reply(302, {}, b""),
        Reply(307, {"location": "https://h/x"}, b"<Error><Code>TemporaryRedirect</Code></Error>"),
    ):
        with pytest.raises(StoreError, match="is elsewhere"):
            store._elsewhere(reply, {}, (200,), None)
    assert place.gate.asked == []


# --- servers that are busy, full, elsewhere, or no S3 ----------------------------------------------------


@pytest.mark.parametrize(
    ("spoilt", "waited"),
    [
        (answer(503, "SlowDown", "Retry-After: 7\r\n"), 7.0),
        (answer(429, "", "Retry-After: 3\r\n"), 3.0),
        (answer(503, "SlowDown"), 0.25),
        (answer(500, "InternalError"), 0.25),
        (answer(400, "RequestTimeout"), 0.25),
        (answer(502, body=b"<html>bad gateway</html>"), 0.25),
    ],
    ids=["slow-down", "too-many", "503", "500", "timeout", "html"],
)
def test_busy_answers_are_waited_out_by_every_call(
    place: Place, tmp_path: Path, spoilt: bytes, waited: float
) -> None:
    """As long as the server asks for, and then it works."""
    store = place.open()
    store.put("jobs/x", b"abc")
    calls: list[tuple[Callable[[], object], object]] = [
        (lambda: store.get("jobs/x"), b"abc"),
        (lambda: store.put("jobs/y", b"1"), None),
        (lambda: store.put_new("jobs/z", b"1"), True),
        (lambda: store.list("jobs"), ["jobs/x", "jobs/y", "jobs/z"]),
        (lambda: store.fetch("jobs/x", tmp_path / "x")[0], 3),
        (lambda: store.delete("jobs/y"), None),
    ]
    for call, right in calls:
        place.clock.slept.clear()
        place.gate.once(lambda asked: True, Fault(answer=spoilt))
        assert call() == right
        assert len(place.clock.slept) == 1
        assert waited <= place.clock.slept[0] <= max(waited, 0.5)
    assert place.really("jobs/z") == b"1"


def test_a_server_that_stays_busy_is_given_up_and_not_called_gone(place: Place) -> None:
    """It answers; trying later may help."""
    place.gate.rule = lambda asked: Fault(answer=answer(503, "SlowDown"))
    with pytest.raises(StoreError, match="SlowDown") as caught:
        place.open().get("jobs/x")
    assert caught.value.transient
    assert not isinstance(caught.value, (StoreGone, ObjectMissing))
    assert len(place.gate.asked) == 6


@pytest.mark.parametrize(
    ("spoilt", "kind", "sentence"),
    [
        (answer(507), StoreFull, "no space left"),
        (answer(403, "QuotaExceeded"), StoreFull, "is full"),
        (answer(403, "StorageCapExceeded"), StoreFull, "is full"),
        (answer(507, "XMinioStorageFull"), StoreFull, "no space left"),
        (answer(400, "EntityTooLarge"), StoreError, "object of this size"),
        (answer(403, "ExpiredToken"), StoreError, "AWS_SESSION_TOKEN is expired"),
        (answer(404, "NoSuchBucket"), StoreGone, "is not there at"),
        (
            answer(
                301,
                "PermanentRedirect",
                "x-amz-bucket-region: eu-west-3\r\nLocation: http://a.b/\r\n",
            ),
            StoreError,
            "must say region=eu-west-3",
        ),
        (
            answer(
                400,
                body=b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>us-west-004</Region></Error>",
            ),
            StoreError,
            "must say region=us-west-004",
        ),
        (answer(307, "", "Location: http://127.0.0.1:1/evil\r\n"), StoreError, "elsewhere"),
    ],
)
def test_what_a_server_says_becomes_the_right_sentence(
    place: Place, spoilt: bytes, kind: type[StoreError], sentence: str
) -> None:
    """Class and words, at once and not after six tries, and without any part of the key."""
    place.open().list("")
    place.gate.asked.clear()
    store = place.open()
    store.list("")  # so that the bucket was just seen
    place.gate.asked.clear()
    place.gate.rule = lambda asked: Fault(answer=spoilt)
    with pytest.raises(kind, match=sentence) as caught:
        store.put("jobs/x", b"1")
    assert type(caught.value) is kind
    assert len(place.gate.asked) == 1
    if kind is StoreError:
        assert not caught.value.transient
    for secret in SECRETS.values():
        assert secret not in f"{caught.value}{caught.value.__cause__}{caught.value.__context__}"


def test_a_login_page_is_no_store(place: Place) -> None:
    """Hotel networks answer 200 with HTML; and entities that expand are not parsed."""
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><ListBucketResult>&b;</ListBucketResult>'
    for body in (b"<html><body>Please log in<br></body></html", bomb, b""):
        place.gate.rule = lambda asked, body=body: Fault(answer=answer(200, body=body))
        with pytest.raises(StoreError, match="does not answer as an S3 server does"):
            place.open().list("jobs")


def test_a_listing_that_never_ends_is_ended(place: Place) -> None:
    """A server that hands out the same page again and again."""
    page = (
        b"<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>p/jobs/x</Key></Contents>"
        b"<NextContinuationToken>again</NextContinuationToken></ListBucketResult>"
    )
    place.gate.rule = lambda asked: Fault(answer=answer(200, body=page))
    with pytest.raises(StoreError, match="does not go on"):
        place.open().list("jobs")
    assert len(place.gate.asked) == 2


def test_keys_out_of_the_folder_are_not_believed(place: Place) -> None:
    """A listing that holds other people's keys, or hostile ones, gives only ours."""
    keys = ("p/jobs/x", "q/jobs/y", "p/jobs/../../etc", "p/other/z", "p/jobs/%2e%2e/a", "p/jobs/")
    contents = "".join(f"<Contents><Key>{key}</Key></Contents>" for key in keys)
    page = f"<ListBucketResult xmlns='http://x/'>{contents}</ListBucketResult>".encode()
    place.gate.rule = lambda asked: Fault(answer=answer(200, body=page))
    assert place.open().list("jobs") == ["jobs/x"]


def test_a_retry_after_that_is_a_date_is_obeyed(place: Place) -> None:
    """The other form of RFC 9110."""
    store = place.open()
    store.put("jobs/x", b"1")
    later = formatdate(time.time() + 40, usegmt=True)
    place.gate.once(get, Fault(answer=answer(503, "SlowDown", f"Retry-After: {later}\r\n")))
    assert store.get("jobs/x") == b"1"
    assert 30 < place.clock.slept[-1] <= 41
