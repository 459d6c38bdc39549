"""Signatures are those of Amazon's own client; keys are found where people keep them, and never told."""

from __future__ import annotations

import hashlib
import random
import string
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pytest

from freegpu.agent.stores import open_store, sigv4
from freegpu.agent.stores.base import StoreError
from freegpu.agent.stores.http import Reply
from freegpu.agent.stores.s3_errors import explained
from freegpu.agent.stores.s3_place import place

SHA = hashlib.sha256(b"body").hexdigest()


def by_botocore(
    method: str, url: str, headers: dict[str, str], key: sigv4.AccessKey, region: str, now: float
) -> dict[str, str]:
    """What botocore sends for the same request at the same time, with the payload's digest given."""
    from botocore import auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest(method=method, url=url, headers={**headers, "X-Amz-Content-SHA256": SHA})
    signer = auth.S3SigV4Auth(Credentials(key.identity, key.secret, key.token), "s3", region)
    moment = datetime.fromtimestamp(now, UTC)

    with (
        mock.patch.object(auth, "get_current_datetime", return_value=moment.replace(tzinfo=None)),
        mock.patch.object(auth.S3SigV4Auth, "payload", return_value=SHA),
    ):
        signer.add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


@pytest.mark.parametrize("seed", range(60))
def test_signatures_are_botocore_s(seed: int) -> None:
    """Random methods, keys, regions, queries with odd characters, headers, with and without a token."""
    lots = random.Random(seed)

    def word(letters: str = string.ascii_letters + string.digits, least: int = 1) -> str:
        return "".join(lots.choices(letters, k=lots.randint(least, 24)))

    odd = string.ascii_letters + " /+=&%?~*'()üß$,:;@"
    key = sigv4.AccessKey(
        word().upper(),
        word(odd.replace("ü", "").replace("ß", "")),
        word() if seed % 3 == 0 else None,
    )
    region, now = word(string.ascii_lowercase + "-"), 1_700_000_000 + lots.random() * 1e8
    host = f"{word(string.ascii_lowercase)}.example" + lots.choice(["", ":9000"])
    path = "/" + "/".join(word(string.ascii_letters + "._-0123456789") for _ in range(3))
    query = sigv4.query_of({word(): word(odd) for _ in range(lots.randint(0, 4))})
    headers = {f"x-amz-meta-{word(string.ascii_lowercase)}": word() for _ in range(2)}
    method = lots.choice(["GET", "PUT", "POST", "HEAD", "DELETE"])
    url = f"https://{host}{path}" + (f"?{query}" if query else "")
    expected = by_botocore(method, url, headers, key, region, now)
    got = sigv4.signed(
        method, host, path, query, headers, key=key, region=region, now=now, payload=SHA
    )
    told = {name.lower(): value for name, value in got.items()}
    assert told["x-amz-date"] == expected["x-amz-date"]
    assert told["authorization"] == expected["authorization"]
    assert told.get("x-amz-security-token") == expected.get("x-amz-security-token")


def test_other_headers_are_sent_but_not_signed() -> None:
    """Proxies may change Range or Content-Type; that breaks no signature."""
    key = sigv4.AccessKey("id", "secret")
    plain = sigv4.signed("GET", "h", "/b", "", {}, key=key, region="r", now=0)
    ranged = sigv4.signed("GET", "h", "/b", "", {"Range": "bytes=0-1"}, key=key, region="r", now=0)
    assert ranged.pop("Range") == "bytes=0-1"
    assert ranged == plain


# --- keys -----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without any credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_REGION", "AWS_DEFAULT_REGION"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def keys(prefix: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": f"{prefix}-id",
        "AWS_SECRET_ACCESS_KEY": f"{prefix}%secret",
        "AWS_SESSION_TOKEN": f"{prefix}-token",
    }


def write(path: Path, profiles: dict[str, dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(
            f"[{name}]\n" + "".join(f"{key.lower()} = {value}\n" for key, value in told.items())
            for name, told in profiles.items()
        )
    )


def test_secrets_come_before_the_environment_and_that_before_the_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each as a whole: an id of one place never meets the secret of another."""
    write(home / ".aws/credentials", {"default": keys("file"), "lab": keys("lab")})
    assert sigv4.find_key({}) == sigv4.AccessKey("file-id", "file%secret", "file-token")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert sigv4.find_key({}).identity == "lab-id"
    for name, value in keys("env").items():
        monkeypatch.setenv(name, value)
    assert sigv4.find_key({}).identity == "env-id"
    assert sigv4.find_key({"AWS_ACCESS_KEY_ID": "half"}).identity == "env-id"
    given = {**keys("own"), "AWS_SESSION_TOKEN": ""}
    assert sigv4.find_key(given) == sigv4.AccessKey("own-id", "own%secret", None)


def test_the_credentials_file_may_be_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS_SHARED_CREDENTIALS_FILE, as Amazon's tools have it."""
    write(tmp_path / "elsewhere", {"default": keys("there")})
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "elsewhere"))
    assert sigv4.find_key({}).identity == "there-id"


def test_a_key_that_is_nowhere_is_one_sentence_that_says_where_to_put_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when only the wrong profile is there; raised by the first call, not by opening."""
    write(home / ".aws/credentials", {"lab": keys("lab")})
    monkeypatch.setenv("AWS_PROFILE", "work")
    store = open_store("s3://bucket/p?endpoint=http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them into ~/\.aws/credentials under \[work\]$") as caught:  # fmt: skip
        store.get("jobs/x")
    assert not caught.value.transient


def test_a_damaged_file_or_key_is_named_without_its_content(home: Path) -> None:
    """A parser's own message would quote the line."""
    path = home / ".aws/credentials"
    path.parent.mkdir()
    path.write_text("aws_secret_access_key = hunter2\n")
    with pytest.raises(StoreError, match="cannot be read") as caught:
        sigv4.find_key({})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__
    path.write_bytes(b"[default]\n\xff\xfe\n")
    with pytest.raises(StoreError, match="cannot be read"):
        sigv4.find_key({})
    bad = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hunter2\r\nHost: evil"}
    with pytest.raises(StoreError, match=r"AWS_SECRET_ACCESS_KEY .* copy it again") as caught:
        sigv4.find_key(bad)
    assert "hunter2" not in str(caught.value)
    pasted = {"AWS_ACCESS_KEY_ID": " id\n", "AWS_SECRET_ACCESS_KEY": "\tsecret \n"}
    assert sigv4.find_key(pasted) == sigv4.AccessKey("id", "secret", None)
    assert "secret" not in repr(sigv4.find_key(pasted))


# --- URLs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("//b-1?endpoint=https://s3.hf.co", ("b-1", "", "https://s3.hf.co", "us-east-1")),
        (
            "//b-1/a/b/?endpoint=https://x.r2.cloudflarestorage.com/&region=auto",
            ("b-1", "a/b/", "https://x.r2.cloudflarestorage.com", "auto"),
        ),
        (
            "//b-1/a?endpoint=https://s3.us-west-004.backblazeb2.com",
            ("b-1", "a/", "https://s3.us-west-004.backblazeb2.com", "us-west-004"),
        ),
        (
            "//b-1?region=eu-central-1",
            ("b-1", "", "https://s3.eu-central-1.amazonaws.com", "eu-central-1"),
        ),
        ("//b.1/p?endpoint=http://[::1]:9000", ("b.1", "p/", "http://[::1]:9000", "us-east-1")),
        ("//b-1", ("b-1", "", "https://s3.us-east-1.amazonaws.com", "us-east-1")),
        (
            "//b-1?endpoint=https://h/s3/v1",
            ("b-1", "", "https://h/s3/v1", "us-east-1"),
        ),
    ],
)
def test_a_url_says_bucket_prefix_endpoint_and_region(
    url: str, expected: tuple[str, str, str, str]
) -> None:
    """The region may be in the endpoint's name already."""
    assert place(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "//",
        "bucket/prefix",
        "//b",
        "//-b-",
        "//bücket",
        "//id:hunter2@bucket/p?endpoint=https://h",
        "//bucket?endpoint=https://id:hunter2@h",
        "//bucket?endpoint=https://h?key=hunter2",
        "//bucket?endpoint=ftp://h",
        "//bucket?endpoint=h",
        "//bucket?endpoint=https://h&key=hunter2",
        "//bucket?endpoint=https://h&endpoint=https://i",
        "//bucket?secret",
        "//bucket?region=a/b",
        "//bucket/../x?endpoint=https://h",
        "//bucket/a b?endpoint=https://h",
        "//bucket/p#hunter2",
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    """ValueError when it is opened, and what may be a key is not repeated."""
    with pytest.raises(ValueError, match=r"bucket|BUCKET|S3 store|region|prefix") as caught:
        open_store(f"s3:{url}")
    assert "hunter2" not in str(caught.value)


def test_a_clock_ahead_is_told_with_its_distance() -> None:
    """Measured against the server's own Date; without one it is just wrong."""
    body = b"<Error><Code>RequestTimeTooSkewed</Code></Error>"
    date = {"date": "Tue, 01 Dec 2026 10:00:00 GMT"}
    now = datetime(2026, 12, 1, 10, 23, tzinfo=UTC).timestamp()
    assert "clock is wrong (23 minutes ahead)" in str(
        explained(Reply(403, date, body), "h", "b", now)
    )
    assert "more than 15 minutes off" in str(explained(Reply(403, {}, body), "h", "b", now))
