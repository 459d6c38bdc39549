"""Tokens are fresh when they are asked for, asked for once, and never sent where they should not go."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

from freegpu.agent.clock import SystemClock
from freegpu.agent.stores.base import Access, StoreError, StoreFull, StoreGone
from freegpu.agent.stores.drive_layout import key_of, properties_of, sorted_out
from freegpu.agent.stores.google import (
    Api,
    SignInGone,
    Tokens,
    explained,
    is_safe,
    parse_secret,
)
from freegpu.agent.stores.http import Http, Refused, Reply
from freegpu.testing.drive_server import DriveServer


class Clock(SystemClock):
    """Stands still until it is moved; sleeping moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def server() -> Iterator[DriveServer]:
    with DriveServer() as made:
        yield made


def tokens(server: DriveServer, clock: Clock) -> Tokens:
    access = Access(secrets={"FREEGPU_DRIVE": server.oauth.grant("app")})
    return Tokens(access, Http(clock=clock), clock)


def test_a_token_is_renewed_before_it_ends_and_not_earlier(server: DriveServer) -> None:
    """An hour's token is used for 58 minutes, then another one is asked for; by the monotonic clock."""
    clock = Clock()
    mine = tokens(server, clock)
    first = mine.get()
    clock.now += 3479
    assert mine.get() == first
    clock.now += 2
    assert mine.get() != first
    assert server.count()["token"] == 2


def test_a_short_token_is_used_for_half_its_life(server: DriveServer) -> None:
    """A server that gives 100 s is not asked before each request."""
    server.oauth.lifetime_s = 100
    clock = Clock()
    mine = tokens(server, clock)
    first = mine.get()
    clock.now += 49
    assert mine.get() == first
    clock.now += 2
    assert mine.get() != first


def test_sixteen_threads_ask_for_one_token(server: DriveServer) -> None:
    """Who comes second waits for the first one's answer."""
    mine = tokens(server, Clock())
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(mine.get())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 16
    assert len(set(found)) == 1
    assert server.count()["token"] == 1


def test_a_token_endpoint_that_is_busy_is_asked_again_and_one_that_refuses_is_not(
    server: DriveServer,
) -> None:
    """503 and a lost answer are patience; invalid_grant and invalid_client are a person's business."""
    clock = Clock()
    server.fail("token", 503, "backendError")
    server.lose_answer("token")
    assert tokens(server, clock).get()
    assert clock.now > 1000
    server.requests.clear()
    grant = json.loads(server.oauth.grant("app"))
    for change, words in (
        ({"refresh_token": "gone"}, "revoked or has expired"),
        ({"client_secret": "wrong"}, "does not know the OAuth client"),
    ):
        access = Access(secrets={"FREEGPU_DRIVE": json.dumps({**grant, **change})})
        with pytest.raises(SignInGone, match=words) as failure:
            Tokens(access, Http(clock=clock), clock).get()
        assert not failure.value.transient
        assert "freegpu connect drive" in str(failure.value)
    assert server.requests == ["token", "token"]


def test_whoever_hands_tokens_out_is_asked_when_one_is_old_or_was_not_taken() -> None:
    """access.token, as google.colab.auth gives them; its exceptions are a store's, without their text."""
    clock = Clock()
    given = iter(["one", "two"])

    def give() -> tuple[str, float]:
        try:
            return next(given), 3600.0
        except StopIteration:
            message = "secret words"
            raise RuntimeError(message) from None

    mine = Tokens(Access(token=give), Http(clock=clock), clock)
    assert (mine.get(), mine.get()) == ("one", "one")
    mine.forget("something else")
    assert mine.get() == "one"
    mine.forget("one")
    assert mine.get() == "two"
    mine.forget("two")
    with pytest.raises(StoreError, match="RuntimeError") as failure:
        mine.get()
    assert "secret words" not in str(failure.value)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", '"x"',
        '{"client_id": "a", "client_secret": "b", "refresh_token": "c", "token_uri": "http://evil.example"}',
        '{"client_id": "a", "client_secret": "b", "refresh_token": "c", "token_uri": "https://"}',
    ],
)  # fmt: skip
def test_a_secret_that_is_none_is_refused_before_anything_is_sent(text: str) -> None:
    """And what it says holds none of it."""
    with pytest.raises(SignInGone) as failure:
        parse_secret(text)
    assert "evil" not in str(failure.value)


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://oauth2.googleapis.com/token", True),
        ("http://127.0.0.1:8000/token", True),
        ("http://localhost/token", True),
        ("http://127.0.0.1.example.com/token", False),
        ("http://oauth2.googleapis.com/token", False),
        ("ftp://127.0.0.1/", False),
        ("https://[broken", False),
        ("", False),
    ],
)
def test_credentials_go_to_https_or_to_this_machine(url: str, safe: bool) -> None:
    """A redirected or mistyped address gets none."""
    assert is_safe(url) is safe


def test_an_upload_is_not_followed_to_another_host(server: DriveServer) -> None:
    """The Location of an upload may name Google's hosts or ours; a token is sent to nobody else."""
    access = Access(secrets={"FREEGPU_DRIVE": server.oauth.grant("app")})
    for endpoint in (server.url, ""):
        api = Api(access, endpoint, Http(), SystemClock())
        for url in (
            "http://127.0.0.1:9/upload",
            "https://evil.example/upload",
            "https://googleapis.com.evil.example/upload",
            "http://www.googleapis.com/upload",
        ):
            with pytest.raises(StoreError, match="another host"):
                api.ask("PUT", url)
        assert api.requests == 0


def refused(status: int, reason: str) -> Refused:
    body = json.dumps({"error": {"code": status, "errors": [{"reason": reason}]}}).encode()
    return Refused("refused", Reply(status, {}, body))


@pytest.mark.parametrize(
    ("status", "reason", "kind", "transient", "words"),
    [
        (403, "storageQuotaExceeded", StoreFull, True, "make room"),
        (403, "accessNotConfigured", StoreError, False, "enable it"),
        (403, "insufficientPermissions", StoreError, False, "box ticked"),
        (403, "userRateLimitExceeded", StoreError, True, "wait"),
        (403, "dailyLimitExceeded", StoreError, True, "wait"),
        (429, "rateLimitExceeded", StoreError, True, "wait"),
        (500, "", StoreError, True, "wait"),
        (403, "somethingNew", StoreError, False, "somethingNew"),
        (401, "authError", SignInGone, False, "freegpu connect drive"),
        (400, "", StoreError, False, "400"),
    ],
)
def test_each_refusal_of_drive_s_is_a_sentence_and_says_whether_waiting_helps(
    status: int, reason: str, kind: type[StoreError], transient: bool, words: str
) -> None:
    """The reasons of Drive's page "Resolve errors"; an unknown one is kept in the sentence."""
    error = explained(refused(status, reason))
    assert type(error) is kind
    assert error.transient is transient
    assert words in str(error)
    assert not isinstance(error, StoreGone)


def test_properties_hold_any_key_of_ours_within_drive_s_limits() -> None:
    """124 bytes each with its name, at most 30; the key comes back from them; one too deep is refused."""
    for key in (
        "freegpu.json",
        "attempts/" + "a" * 60 + "/blobs/" + "f" * 64,
        "x/" * 9 + "y" * 500,
    ):
        found = properties_of("root-id", key, "0" * 64, new=True)
        assert len(found) <= 30
        assert all(len(f"{name}{value}".encode()) <= 124 for name, value in found.items())
        assert key_of({"properties": found}) == key
    with pytest.raises(StoreError, match="too deep") as failure:
        properties_of("root-id", "d/" * 40 + "x", "0" * 64, new=False)
    assert not failure.value.transient


@pytest.mark.parametrize(
    "properties", [{}, {"fg-path-0": "../x"}, {"fg-path-1": "jobs/x"}, {"fg-path-0": "jobs/"}]
)
def test_a_file_whose_properties_are_no_key_is_nobody_s_object(properties: dict[str, str]) -> None:
    """Whoever may write to the Drive cannot make a name that leaves the store."""
    assert sorted_out([{"id": "1", "properties": properties}]) == ({}, {})
