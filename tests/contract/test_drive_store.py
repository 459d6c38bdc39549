"""DriveStore keeps the store's contract over a Drive server of our own; and what is special about a Drive."""

from __future__ import annotations

import hashlib
import random
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from freegpu.agent.clock import SystemClock
from freegpu.agent.stores import Access, open_store
from freegpu.agent.stores.base import ObjectMissing, Stat, StoreError, StoreFull, StoreGone
from freegpu.agent.stores.drive import DriveStore
from freegpu.agent.stores.google import SignInGone
from freegpu.testing.drive_server import Drive, DriveServer, File
from freegpu.testing.suites import StoreSuite

FOLDER = "application/vnd.google-apps.folder"
MIB = 1 << 20


class QuickClock(SystemClock):
    """Real time that can be moved on; naps are noted and not taken."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.naps: list[float] = []

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.ahead += seconds


@pytest.fixture
def server() -> Iterator[DriveServer]:
    with DriveServer() as made:
        yield made


def opened(
    server: DriveServer, *, client: str = "app", scope: str = "drive.file", name: str = "freegpu"
) -> DriveStore:
    """Another client of the store, with a sign-in of its own."""
    access = Access(secrets={"FREEGPU_DRIVE": server.oauth.grant(client, scope)})
    return DriveStore(f"{name}?endpoint={server.url}", access, clock=QuickClock())


@pytest.fixture
def store(server: DriveServer) -> DriveStore:
    made = opened(server)
    made.put("freegpu.json", b"{}")
    server.requests.clear()
    return made


def clock_of(store: DriveStore) -> QuickClock:
    clock = store._clock
    assert isinstance(clock, QuickClock)
    return clock


class TestDriveStore(StoreSuite):
    """By URL, as an agent opens it; the store's folder is thrown away and restored."""

    @pytest.fixture(autouse=True)
    def _at(self, server: DriveServer) -> None:
        self.server = server

    def open(self, folder: Path) -> DriveStore:
        access = Access(secrets={"FREEGPU_DRIVE": self.server.oauth.grant("app")})
        store = open_store(f"drive:mein%20Ordner?endpoint={self.server.url}", access)
        assert isinstance(store, DriveStore)
        store._folders.seen_s = 0  # the suite takes the store away between two calls
        return store

    def unplug(self, folder: Path) -> bool:
        (self.root,) = self.server.named("mein Ordner")
        self.server.person(self.root, trashed=True)
        return True

    def plug(self, folder: Path) -> None:
        self.server.person(self.root, trashed=False)

    def litter(self, folder: Path) -> bool:
        (place,) = self.server.named("jobs")
        for name in ("x (1).json", "Untitled document", "jobs/y", "ü"):
            self.server.person_makes(name, b"?", parents=[place.id])
        return True


class TestDriveStoreOfTheWholeDrive(TestDriveStore):
    """With the scope `drive`, and with tokens that somebody else hands out."""

    def open(self, folder: Path) -> DriveStore:
        access = Access(token=lambda: (self.server.oauth.access_token("colab"), 3600.0))
        rest = f"mein Ordner?endpoint={self.server.url}"
        return DriveStore(rest, access, root_seen_s=0)


# --- how many requests ----------------------------------------------------------------------------------


def test_a_mailbox_is_one_request_and_so_is_each_known_object(
    server: DriveServer, store: DriveStore
) -> None:
    """List, read, replace, ask about, delete: one each. A poll that finds nothing: one. A new object: two."""
    for seq in range(1, 6):
        store.put_new(f"sessions/s/inbox/{seq:06d}.json", b"ticket")
    reader = opened(server)
    reader.list("sessions/s/inbox")
    for what, expected in (
        (lambda: reader.list("sessions/s/inbox"), "files.list"),
        (lambda: reader.get("sessions/s/inbox/000003.json"), "files.download"),
        (lambda: reader.stat("sessions/s/inbox/000003.json", digest=True), "files.get"),
        (lambda: store.put("sessions/s/inbox/000001.json", b"again"), "files.update"),
        (lambda: store.delete("sessions/s/inbox/000002.json"), "files.delete"),
    ):
        before = reader.requests + store.requests
        server.requests.clear()
        what()
        assert server.requests == [expected]
        assert reader.requests + store.requests == before + 1
    server.requests.clear()
    with pytest.raises(ObjectMissing):
        reader.get("sessions/s/inbox/000006.json")
    assert server.requests == ["files.list"]
    server.requests.clear()
    store.put_new("sessions/s/inbox/000007.json", b"new")
    assert server.requests == ["files.list", "files.create"]


def test_a_person_finds_the_way(server: DriveServer, store: DriveStore) -> None:
    """A folder for each of the store's top folders, under the store's; each file has its whole key as its name."""
    store.put("jobs/j/checkpoints/1-2.json", b"x")
    (root,) = server.named("freegpu")
    (jobs,) = server.named("jobs")
    (file,) = server.named("jobs/j/checkpoints/1-2.json")
    assert (jobs.parents, file.parents) == ([root.id], [jobs.id])


# --- answers that are lost, cuts, refusals ----------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 6 * MIB], ids=["small", "large"])
@pytest.mark.parametrize(
    "fault", ["lost", "503 after", "503 before", "429", "403", "cut", "lost start"]
)
def test_no_fault_makes_a_twin_or_loses_an_object(
    server: DriveServer, store: DriveStore, fault: str, size: int
) -> None:
    """Whatever happens to the request that carries the bytes, put_new says True once and one file is there."""
    data = random.Random(1).randbytes(size)
    store.put("jobs/other", b"x")
    carries = "files.create" if size < MIB else "upload.chunk"
    if fault == "lost":
        server.lose_answer(carries)
    elif fault == "503 after":
        server.fail(carries, 503, accepted=True)
    elif fault == "503 before":
        server.fail(carries, 503, times=2)
    elif fault == "429":
        server.fail(carries, 429, "rateLimitExceeded", retry_after_s=7)
    elif fault == "403":
        server.fail(carries, 403, "userRateLimitExceeded", times=2)
    elif fault == "cut":
        server.cut(carries, size // 2)
    else:
        server.lose_answer("upload.start" if size > MIB else "files.create")
    assert store.put_new("jobs/x", data) is True
    assert store.put_new("jobs/x", data) is False
    assert len(server.named("jobs/x")) == 1
    assert opened(server).get("jobs/x") == data
    assert server.faults == []
    if fault == "429":
        assert max(clock_of(store).naps) >= 7 or size > MIB


def test_a_call_that_gave_up_is_gone_on_with_by_the_next_one(
    server: DriveServer, store: DriveStore
) -> None:
    """A create whose answers are all lost fails; the next put_new of the same bytes finds that it was ours."""
    store.put("jobs/other", b"x")
    server.lose_answer("files.create", times=100)
    with pytest.raises(StoreGone):
        store.put_new("jobs/x", b"data")
    server.faults.clear()
    assert store.put_new("jobs/x", b"data") is True
    assert len(server.named("jobs/x")) == 1


def test_an_upload_goes_on_where_it_was_cut_also_in_the_next_call(
    server: DriveServer, store: DriveStore, tmp_path: Path
) -> None:
    """40 MiB; 33 MiB arrive before the line is dead for long. The next call sends the rest and not the whole."""
    data = random.Random(2).randbytes(40 * MIB)
    source = tmp_path / "large"
    source.write_bytes(data)
    sent: list[int] = []
    told: list[tuple[str, int, int]] = []
    store.put("attempts/a/other", b"x")
    access = Access(
        secrets={"FREEGPU_DRIVE": server.oauth.grant("app")},
        progress=lambda key, done, total: told.append((key, done, total)),
    )
    store = DriveStore(f"freegpu?endpoint={server.url}", access, clock=QuickClock())
    seen = 0

    class Third(list[str]):
        def append(self, operation: str) -> None:
            nonlocal seen
            super().append(operation)
            if operation == "upload.chunk":
                seen += 1
                if seen == 3:
                    server.cut("upload.chunk", MIB)
                    server.fail("upload.ask", 503, times=1000)

    server.requests = Third()
    with pytest.raises(StoreError):
        store.put_new("attempts/a/blobs/large", source)
    server.faults.clear()
    (upload,) = server.uploads.values()
    sent.append(upload.received)
    assert sent == [33 * MIB]
    server.requests = []
    assert store.put_new("attempts/a/blobs/large", source) is True
    assert server.count()["upload.start"] == 0
    assert server.count()["upload.chunk"] == 1
    (file,) = server.named("attempts/a/blobs/large")
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    assert told[-1] == ("attempts/a/blobs/large", 40 * MIB, 40 * MIB)


def test_a_forgotten_upload_begins_anew(server: DriveServer, store: DriveStore) -> None:
    """The session of a cut upload is gone (404): another one with the same id, and one file."""
    data = bytes(6 * MIB)
    server.cut("upload.chunk", MIB)
    server.fail("upload.ask", 404, "notFound")
    assert store.put_new("jobs/x", data) is True
    assert server.count()["upload.start"] == 2
    assert len(server.named("jobs/x")) == 1


def test_a_download_that_is_cut_is_taken_up_again(
    server: DriveServer, store: DriveStore, tmp_path: Path
) -> None:
    """fetch and get; the digest is that of the whole."""
    data = random.Random(3).randbytes(3 * MIB)
    store.put("jobs/x", data)
    server.cut("files.download", MIB)
    assert store.fetch("jobs/x", tmp_path / "x") == (len(data), hashlib.sha256(data).hexdigest())
    assert (tmp_path / "x").read_bytes() == data
    server.cut("files.download", MIB)
    assert store.get("jobs/x") == data


def test_what_arrived_as_other_bytes_is_refused_and_removed(
    server: DriveServer, store: DriveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own digest over what it has differs: an error, nothing stands there, and the next try is right."""
    store.put("jobs/other", b"x")
    right = Drive._set_content

    def broken(self: Drive, file: File, content: Path | None) -> None:
        if content:
            content.write_bytes(b"broken")
        right(self, file, content)

    monkeypatch.setattr(Drive, "_set_content", broken)
    with pytest.raises(StoreError, match="other bytes") as failure:
        store.put_new("jobs/x", b"intact")
    assert failure.value.transient
    monkeypatch.undo()
    assert server.named("jobs/x") == []
    assert store.put_new("jobs/x", b"intact") is True
    assert opened(server).get("jobs/x") == b"intact"


def test_a_full_drive_says_what_to_do(server: DriveServer, store: DriveStore) -> None:
    """StoreFull in a sentence, for a small object and for a large one; space tells the figures."""
    server.drive.quota = 8 * MIB
    for data in (b"x" * 4 * MIB, b"y" * 7 * MIB):
        store.put("jobs/x", b"x" * 4 * MIB)
        with pytest.raises(StoreFull, match="make room"):
            store.put_new("jobs/y", data + b"z" * MIB)
        assert store.stat("jobs/y") is None
    assert store.space() == (4 * MIB - 2, 8 * MIB)


# --- sign-in --------------------------------------------------------------------------------------------


def test_an_old_token_is_renewed_and_a_revoked_sign_in_says_what_to_do(
    server: DriveServer, store: DriveStore
) -> None:
    """401 renews once; invalid_grant is an error that no retry mends; so is no sign-in at all."""
    server.oauth.expire_all()
    server.requests.clear()
    assert store.list("jobs") == []
    assert server.requests == ["files.list", "token", "files.list"]
    server.oauth.revoke_all()
    for client in (store, opened(server)):
        if client is not store:
            server.oauth.revoke_all()
        with pytest.raises(SignInGone, match="freegpu connect drive") as failure:
            client.list("jobs")
        assert not failure.value.transient
    with pytest.raises(SignInGone, match="no sign-in"):
        DriveStore(f"freegpu?endpoint={server.url}").list("")


def test_with_drive_file_another_client_s_objects_are_not_there(server: DriveServer) -> None:
    """A notebook that signs in as google.colab.auth does sees nothing of ours, nor we of it; full scope both ways."""
    store = opened(server)
    store.put("freegpu.json", b"{}")
    store.put("jobs/x", b"mine")
    with pytest.raises(StoreGone):
        opened(server, client="colab", scope="drive.file").list("")
    # full scope there: it sees ours, and what it writes we do not see
    colab = opened(server, client="colab", scope="drive")
    assert colab.get("jobs/x") == b"mine"
    colab.put_new("jobs/y", b"theirs")
    assert store.list("jobs") == ["jobs/x"]
    with pytest.raises(ObjectMissing):
        store.get("jobs/y")
    # full scope on both sides
    assert opened(server, scope="drive").list("jobs") == ["jobs/x", "jobs/y"]


# --- late listings, twins, people -----------------------------------------------------------------------


def test_who_knows_the_id_is_not_fooled_by_late_listings(
    server: DriveServer, store: DriveStore
) -> None:
    """Replaced: read fresh. Deleted: missing, and not read from the listing. New: written and read by its writer."""
    store.put("jobs/beat", b"1")
    store.put("jobs/gone", b"x")
    reader = opened(server)
    assert reader.get("jobs/beat") == b"1"
    assert reader.get("jobs/gone") == b"x"
    server.listing_lag_s = float("inf")
    store.put("jobs/beat", b"22")
    store.delete("jobs/gone")
    store.put("jobs/new", b"new")
    assert reader.get("jobs/beat") == b"22"
    assert reader.stat("jobs/beat") == Stat(2)
    for client in (reader, opened(server)):
        assert "jobs/gone" in client.list("jobs")
        assert client.stat("jobs/gone") is None
        with pytest.raises(ObjectMissing):
            client.get("jobs/gone")
    assert store.get("jobs/new") == b"new"
    assert store.put_new("jobs/gone", b"again") is True
    assert reader.stat("jobs/new") is None
    server.listing_lag_s = 0
    assert reader.get("jobs/new") == b"new"
    assert reader.get("jobs/gone") == b"again"


def test_of_twins_everybody_takes_the_same_one(server: DriveServer) -> None:
    """Two writers whom a late listing hid from each other: of what is written once the oldest, of beats the newest."""
    one, two = opened(server), opened(server)
    one.put("freegpu.json", b"{}")
    one.put("jobs/first", b"x")
    two.list("")
    server.listing_lag_s = float("inf")
    for client, data in ((one, b"one"), (two, b"two")):
        client.put_new("jobs/once", data)
        client.put("jobs/beat", data)
        time.sleep(0.005)  # times of a Drive are milliseconds
    server.listing_lag_s = 0
    assert len(server.named("jobs/once")) == len(server.named("jobs/beat")) == 2
    for client in (one, two, opened(server)):
        clock_of(client).ahead += 61  # ids that are known are asked after once a minute
        assert client.list("jobs") == ["jobs/beat", "jobs/first", "jobs/once"]
        assert client.get("jobs/once") == b"one"
        assert client.get("jobs/beat") == b"two"
        assert sorted(client.twins) == ["jobs/beat", "jobs/once"]
    # whoever of them goes on replaces the one that counts
    one.put("jobs/beat", b"three")
    assert opened(server).get("jobs/beat") == b"three"
    # the newest is not what its writer meant: the other one counts
    newest = max(server.named("jobs/beat"), key=lambda file: file.modified)
    server.person(newest, properties={"fg-sha256": "0" * 64})
    assert opened(server).get("jobs/beat") == b"one"
    # deleting takes the twins along
    one.delete("jobs/once")
    assert server.named("jobs/once") == []


def test_a_beat_whose_writer_began_a_second_file_is_not_silent_for_long(
    server: DriveServer, store: DriveStore
) -> None:
    """An agent that starts anew behind a late listing writes a twin; a reader who knows the old file finds it in a minute."""
    store.put("sessions/s/agent-beat.json", b"1")
    reader = opened(server)
    assert reader.get("sessions/s/agent-beat.json") == b"1"
    anew = opened(server)
    anew.list("jobs")
    server.listing_lag_s = float("inf")
    server.drive.index.clear()
    server.drive.index.update({f.id: f for f in server.named("freegpu")})
    anew.put("sessions/s/agent-beat.json", b"2")
    server.listing_lag_s = 0
    server.drive.index.update({f.id: f for f in server.named("sessions/s/agent-beat.json")})
    assert len(server.named("sessions/s/agent-beat.json")) == 2
    assert reader.get("sessions/s/agent-beat.json") == b"1"
    clock_of(reader).ahead += 61
    assert reader.get("sessions/s/agent-beat.json") == b"2"


def test_an_object_s_address_opens_it_with_a_token(server: DriveServer, store: DriveStore) -> None:
    """As a notebook's cell fetches the agent, before there is any freegpu."""
    store.put("agent/x.pyz", b"agent")
    url = opened(server).address("agent/x.pyz")
    token = server.oauth.access_token("app", "drive.file")
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.read() == b"agent"
    with pytest.raises(ObjectMissing):
        store.address("agent/none")


def test_a_person_renames_moves_throws_away_and_deletes(
    server: DriveServer, store: DriveStore
) -> None:
    """Renamed and moved files are found all the same; thrown-away and deleted ones are missing and can be written again."""
    for name in ("renamed", "moved", "thrown", "deleted", "again"):
        store.put(f"jobs/{name}", name.encode())
    other = server.person_makes("elsewhere", mimeType=FOLDER)
    server.person(server.named("jobs/renamed")[0], name="my favourite (1).json")
    server.person(server.named("jobs/moved")[0], move_to=other.id)
    server.person(server.named("jobs/thrown")[0], trashed=True)
    server.person(server.named("jobs/deleted")[0], delete=True)
    reader = opened(server)
    assert reader.list("jobs") == ["jobs/again", "jobs/moved", "jobs/renamed"]
    assert (reader.get("jobs/renamed"), reader.get("jobs/moved")) == (b"renamed", b"moved")
    for client in (store, reader):
        for name in ("thrown", "deleted"):
            assert client.stat(f"jobs/{name}") is None
    store.put("jobs/thrown", b"back")
    store.put("jobs/deleted", b"back")
    store.put("jobs/renamed", b"written")
    assert reader.get("jobs/thrown") == reader.get("jobs/deleted") == b"back"
    assert reader.get("jobs/renamed") == b"written"
    assert len(server.named("my favourite (1).json")) == 1


def test_a_known_file_in_the_trash_is_taken_out_by_a_put(
    server: DriveServer, store: DriveStore
) -> None:
    """The heartbeat that a person threw away a moment ago is there again after the next beat, in sight."""
    store.put("sessions/s/agent-beat.json", b"1")
    server.person(server.named("sessions/s/agent-beat.json")[0], trashed=True)
    store.put("sessions/s/agent-beat.json", b"2")
    assert opened(server).list("sessions") == ["sessions/s/agent-beat.json"]
    # the folder that a person sees it in may go as well
    server.person(server.named("sessions")[0], trashed=True)
    store.put("sessions/s/agent-beat.json", b"3")
    store.put_new("sessions/s/hello.json", b"hello")
    reader = opened(server)
    assert reader.list("sessions") == ["sessions/s/agent-beat.json", "sessions/s/hello.json"]
    assert reader.get("sessions/s/agent-beat.json") == b"3"
    server.person(server.named("sessions")[0], delete=True)
    store.put_new("sessions/s/outbox/1.json", b"event")
    assert reader.list("sessions") == ["sessions/s/outbox/1.json"]


@pytest.mark.parametrize("how", ["trash", "delete"])
def test_a_store_whose_folder_is_thrown_away_is_gone_and_not_empty(
    server: DriveServer, store: DriveStore, how: str
) -> None:
    """At once for lists and writes, within half a minute for reads by id; it is never made anew by itself."""
    store.put("jobs/x", b"x")
    (root,) = server.named("freegpu")
    server.person(root, **({"trashed": True} if how == "trash" else {"delete": True}))  # type: ignore[arg-type]
    with pytest.raises(StoreGone, match="freegpu is not in Google Drive any more"):
        store.list("jobs")
    for call in (
        lambda: store.put("jobs/x", b"y"),
        lambda: store.put_new("jobs/z", b"z"),
        lambda: store.put("freegpu.json", b"{}"),
        lambda: store.get("jobs/x"),
        lambda: store.stat("jobs/x"),
        lambda: opened(server).list("jobs"),
        lambda: opened(server).put("jobs/z", b"z"),
    ):
        with pytest.raises(StoreGone):
            call()
    assert server.named("freegpu") == []


def test_of_folders_with_the_store_s_name_the_oldest_counts(server: DriveServer) -> None:
    """Also with a name that no file system and no query likes; the others are counted, and left alone."""
    name = "Übung 'x' \\ 研究"
    first = opened(server, scope="drive", name=name.replace("%", "%25"))
    first.put("freegpu.json", b"{}")
    server.person_makes(name, mimeType=FOLDER)
    server.person_makes(name, b"a file of that name")
    second = opened(server, scope="drive", name=name)
    assert second.get("freegpu.json") == b"{}"
    assert (first.root_twins, second.root_twins) == (0, 1)


def test_two_stores_in_one_drive_do_not_see_each_other(server: DriveServer) -> None:
    """The same keys under two folders."""
    one, two = opened(server, name="one"), opened(server, name="two")
    for store in (one, two):
        store.put("freegpu.json", store.folder.encode())
        store.put("jobs/x", store.folder.encode())
    assert (one.get("jobs/x"), two.get("jobs/x")) == (b"one", b"two")
    one.delete("jobs/x")
    assert (one.list(""), two.list("")) == (["freegpu.json"], ["freegpu.json", "jobs/x"])


def test_a_wrong_clock_changes_nothing(
    server: DriveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day ahead or behind: tokens are renewed by age, twins are told apart by the server's clock."""
    real = time.time
    for day in (-86400, 86400):
        monkeypatch.setattr(time, "time", lambda day=day: real() + day)
        store = opened(server, name=f"day{day}")
        server.oauth._clock = server.drive.clock = real
        store.put("freegpu.json", b"{}")
        server.requests.clear()
        store.put("jobs/x", b"1")
        assert store.get("jobs/x") == b"1"
        assert server.count()["token"] == 0


def test_a_deleted_object_is_not_in_the_trash(server: DriveServer, store: DriveStore) -> None:
    """It takes no space any more."""
    store.put("jobs/x", b"x" * 1000)
    store.delete("jobs/x")
    assert server.drive.used() == 2


def test_more_objects_than_a_page_holds(server: DriveServer, store: DriveStore) -> None:
    """A listing goes on until the server says that it is complete."""
    keys = [f"jobs/{number:04d}" for number in range(12)]
    for key in keys:
        store.put(key, b"")
    small = opened(server)
    ask = small.api.json

    def paged(method: str, path: str, query: dict[str, str], data: object = None) -> object:
        return ask(method, path, {**query, "pageSize": "5"} if path == "/files" else query, data)

    small.api.json = paged  # type: ignore[method-assign, assignment]
    assert small.list("jobs") == keys


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("a/b", "without /"),
        ("x?endpoint=https://drive.example.com", "this machine"),
        ("x?endpoint=http://127.0.0.1.example.com", "this machine"),
        ("x?team=1", "no option 'team'"),
        ("a%00b", "without /"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(rest: str, words: str) -> None:
    """Before anything is asked; the default folder is freegpu."""
    with pytest.raises(ValueError, match=words):
        open_store(f"drive:{rest}")
    assert isinstance(default := open_store("drive:"), DriveStore)
    assert default.folder == "freegpu"
