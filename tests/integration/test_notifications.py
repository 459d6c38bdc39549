"""Notices on their way: a real HTTP server receives what Apprise posts; the ledger sees to it that each comes once."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from freegpu.errors import ConfigError
from freegpu.jobs.model import JobSpec
from freegpu.orchestrator import addresses, notices, notify
from freegpu.orchestrator.addresses import Address
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Job, NewJob
from freegpu.orchestrator.notices import Notice, NoticeKind
from freegpu.testing.clock import ManualClock

#: a module that Apprise imports on Python 3.11 and 3.12
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

BEGIN = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)


class Receiver:
    """A web server on this machine that keeps what is posted; `answer` is the status that it gives."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.answer = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                receiver.posts.append((self.path, json.loads(self.rfile.read(length))))
                self.send_response(receiver.answer)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def url(self, scheme: str = "json", path: str = "") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    @property
    def titles(self) -> list[str]:
        return [body["title"] for _, body in self.posts]

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


class Home:
    """A home with a ledger, and a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.clock = ManualClock(BEGIN.timestamp())
        self.ledger = Ledger.open(str(folder / "state.db"), clock=self.clock)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.time(), UTC)

    def add(self, url: str, *on: NoticeKind) -> None:
        first = not addresses.read(self.folder)
        addresses.add(self.folder, Address(url=url, on=on or tuple(NoticeKind)))
        if first:
            notify.begin(self.ledger)

    def job(self, name: str = "mnist") -> Job:
        return self.ledger.add_jobs([NewJob(spec=JobSpec(name=name, run="true"))], why="test")[0]

    def fail(self, job: Job) -> None:
        self.ledger.record("job.failed", "the command failed", job=job.id, attempt=f"{job.id}-1")

    def pump(self, ledger: Ledger | None = None, **given: Any) -> int:
        given.setdefault("until", time.monotonic() + 60.0)
        return notify.pump(self.folder, ledger or self.ledger, self.now, **given)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "home")
    yield made
    made.ledger.close()


def test_a_notice_arrives_once_as_json_and_as_ntfy(home: Home, receiver: Receiver) -> None:
    """Title and body, through the real Apprise; the next round has nothing to say."""
    home.add(receiver.url())
    home.add(receiver.url("ntfy", "/my-topic"))
    home.fail(home.job())
    assert home.pump() == 1
    assert home.pump() == 0
    assert len(receiver.posts) == 2
    (_, plain), (_, ntfy) = sorted(receiver.posts, key=lambda post: "topic" in post[1])
    assert plain["title"] == ntfy["title"] == "mnist has failed"
    assert plain["type"] == "failure"
    assert ntfy["topic"] == "my-topic"
    assert "freegpu logs" in plain["message"]
    assert "freegpu logs" in ntfy["message"]


def test_what_happened_before_the_first_address_is_not_told(home: Home, receiver: Receiver) -> None:
    """A person who adds an address is not flooded with last month."""
    home.fail(home.job("old"))
    home.add(receiver.url())
    home.fail(home.job("new"))
    home.pump()
    assert receiver.titles == ["new has failed"]


def test_an_address_hears_only_what_it_asked_for(home: Home, receiver: Receiver) -> None:
    """--on failed."""
    home.add(receiver.url(), NoticeKind.FAILED)
    job = home.job()
    home.ledger.record("job.succeeded", "its result was accepted", job=job.id)
    home.fail(home.job("other"))
    home.pump()
    assert receiver.titles == ["other has failed"]


def test_processes_that_tick_at_once_send_each_notice_once(home: Home, receiver: Receiver) -> None:
    """Claimed before it is sent, in the ledger: six processes' worth of ledgers, one post each."""
    home.add(receiver.url())
    for number in range(4):
        home.fail(home.job(f"job-{number}"))
    gate = threading.Barrier(6)

    def process(_: int) -> int:
        with Ledger.open(str(home.folder / "state.db"), clock=home.clock) as ledger:
            gate.wait()
            return home.pump(ledger)

    with ThreadPoolExecutor(6) as pool:
        sent = list(pool.map(process, range(6)))
    home.pump()
    assert sum(sent) == 4
    assert sorted(receiver.titles) == [f"job-{number} has failed" for number in range(4)]


def test_what_is_refused_is_one_warning_and_is_tried_again_later_up_to_a_bound(
    home: Home, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in the same round, nor before its time; after five tries it is given up."""
    receiver.answer = 500
    home.add(receiver.url(path="/hidden-path-4711"))
    home.fail(home.job())
    with caplog.at_level(logging.WARNING):
        assert home.pump() == 0
        assert home.pump() == 0
    assert len(receiver.posts) == 1
    ours = [record for record in caplog.records if record.name.startswith("freegpu")]
    assert [record.levelname for record in ours] == ["WARNING"]
    assert not logging.getLogger("apprise").propagate
    assert "could not notify json://127.0.0.1" in caplog.text
    assert "that mnist has failed" in caplog.text
    assert "hidden-path-4711" not in caplog.text
    for _ in range(10):
        home.clock.sleep(300.0)
        home.pump()
    assert len(receiver.posts) == notices.TRIES
    assert "it is given up" in caplog.text


def test_a_second_try_reaches_only_the_address_that_was_missed(
    home: Home, receiver: Receiver, tmp_path: Path
) -> None:
    """Nobody hears a thing twice because somebody else did not hear it."""
    other = Receiver()
    try:
        other.answer = 503
        home.add(receiver.url())
        home.add(other.url())
        home.fail(home.job())
        home.pump()
        other.answer = 200
        home.clock.sleep(60.0)
        assert home.pump() == 1
        assert len(receiver.posts) == 1
        assert len(other.posts) == 2
    finally:
        other.close()


def test_a_crash_between_claim_and_sending_loses_that_one_notice_only(home: Home) -> None:
    """As the manual says; the rest is sent by the next process."""
    home.add("json://127.0.0.1:9")
    for name in ("first", "second", "third"):
        home.fail(home.job(name))
    sent: list[str] = []

    class Killed(BaseException):
        pass

    def dies(_: Address, notice: Notice) -> str:
        if notice.title.startswith("second"):
            raise Killed
        sent.append(notice.title)
        return ""

    with pytest.raises(Killed):
        home.pump(sender=dies)
    home.pump(sender=dies)
    assert sent == ["first has failed", "third has failed"]


def test_no_sending_begins_after_the_time_is_up(home: Home) -> None:
    """What is left stays in the queue, unclaimed, without counting as a try."""
    home.add("json://127.0.0.1:9")
    for name in ("first", "second"):
        home.fail(home.job(name))
    sent: list[str] = []

    def slow(_: Address, notice: Notice) -> str:
        sent.append(notice.title)
        home.clock.sleep(31.0)
        return ""

    limit = home.clock.monotonic() + 30.0
    assert home.pump(sender=slow, until=limit, monotonic=home.clock.monotonic) == 1
    assert sent == ["first has failed"]
    home.pump(sender=slow)
    assert sent == ["first has failed", "second has failed"]


def test_an_invitation_is_sent_with_its_link_and_not_again_within_six_hours(
    home: Home, receiver: Receiver
) -> None:
    """Across processes: what was told is remembered in the ledger."""
    home.add(receiver.url())
    wanted = [notices.attended("colab", "https://example.org/nb", "mnist ends 5 h sooner")]
    for _ in range(3):
        home.pump(wanted=wanted)
        home.clock.sleep(3600.0)
    assert receiver.titles == ["one click on colab would pay off now"]
    assert "https://example.org/nb" in receiver.posts[0][1]["message"]
    home.clock.sleep(timedelta(hours=4).total_seconds())
    home.pump(wanted=wanted)
    assert len(receiver.posts) == 2


def test_a_command_sends_after_its_output_and_a_daemon_beside_its_ticks(
    home: Home, receiver: Receiver
) -> None:
    """One tick only marks; the second one starts the thread; finish waits for it."""
    home.add(receiver.url())
    home.fail(home.job())
    notifier = notify.Notifier(home.folder, str(home.folder / "state.db"), home.clock)
    notifier.note(list)
    time.sleep(0.2)
    assert receiver.posts == []
    assert notifier.finish(20.0)
    assert receiver.titles == ["mnist has failed"]
    home.fail(home.job("second"))
    notifier.note(list)
    notifier.finish(20.0)
    assert receiver.titles == ["mnist has failed", "second has failed"]


def test_a_service_that_hangs_holds_nobody_up(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the tick nor the end of the command, beyond the time that it may take."""
    hang = threading.Event()
    monkeypatch.setattr(notify, "pump", lambda *_, **__: hang.wait(30.0))
    home.add("json://127.0.0.1:9")
    notifier = notify.Notifier(home.folder, str(home.folder / "state.db"), home.clock)
    begun = time.monotonic()
    notifier.note(list)
    notifier.start()
    notifier.note(list)
    assert not notifier.finish(0.2)
    assert time.monotonic() - begun < 5.0
    hang.set()
    assert notifier.finish(20.0)


def test_without_an_address_nothing_is_done_at_all(home: Home) -> None:
    """No thread, no question to the ledger, no state: most homes have none."""
    notifier = notify.Notifier(home.folder, str(home.folder / "state.db"), home.clock)

    def asked() -> list[Any]:
        raise AssertionError("nobody wants to know")

    notifier.note(asked)
    notifier.note(asked)
    assert notifier.finish(0.0)
    assert home.pump() == 0
    assert home.ledger.meta(notify.META) is None


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("json://user:secretpw@127.0.0.1:81/hidden/path?+X-Token=t0ken", "secretpw hidden t0ken"),
        ("tgram://123456789:AbcdefGhij/-1001", "123456789 AbcdefGhij 1001"),
        ("ntfy://my-own-topic", "my-own-topic"),
        ("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", "T1JJ3T3L2 TIiajkdnlazkcOXrIdevi7FQ"),
        ("wecombot://botkey-4711", "botkey-4711"),
        ("mailto://me:pass-4711@gmail.com", "pass-4711 me:"),
        ("nonsense-4711", "4711"),
    ],
)  # fmt: skip
def test_an_address_is_shown_without_its_secrets(url: str, secret: str) -> None:
    """And neither does an error of Apprise give them away."""
    address = Address(url=url)
    refused = addresses.send(address, Notice(kind=NoticeKind.LOST, key="k", title="t", body="b")) \
        if url.startswith("nonsense") else ""  # fmt: skip
    for part in secret.split():
        assert part not in address.shown
        assert part not in refused


def test_the_file_is_private_and_a_wide_open_one_is_closed(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """Tokens lie in it."""
    home.add("json://127.0.0.1:9")
    path = home.folder / addresses.FILE_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    assert len(addresses.read(home.folder)) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert "mode 644" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "notify = 3",
        "[[notify]]\non = ['failed']",
        "[[notify]]\nurl = 'json://h'\non = ['never']",
        "[[notify]]\nurl = 'json://h'\nextra = 1",
        "other = 1",
        "[[notify]\n",
        "\x00",
    ],
)
def test_a_file_that_was_spoiled_by_hand_is_refused_in_one_sentence(home: Home, text: str) -> None:
    """And is left as it is."""
    path = home.folder / addresses.FILE_NAME
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        addresses.add(home.folder, Address(url="json://127.0.0.1:9"))
    assert addresses.FILE_NAME in caught.value.message
    assert caught.value.hint
    assert path.read_text() == text


def test_addresses_added_at_once_are_all_there(home: Home) -> None:
    """Two shells, one file."""
    urls = [f"json://127.0.0.1:{port}" for port in range(9001, 9013)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda url: addresses.add(home.folder, Address(url=url)), urls))
    assert sorted(address.url for address in addresses.read(home.folder)) == urls
    left = addresses.remove(home.folder, urls[3])
    assert len(left) == len(urls) - 1
    for which in ("0", "99", "x", "-1", ""):
        with pytest.raises(ConfigError, match="there are 11"):
            addresses.remove(home.folder, which)
    assert os.listdir(home.folder)
