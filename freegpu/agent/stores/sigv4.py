"""AWS Signature Version 4, and where the key for it is found.

Pure but for `find_key`, which reads the environment and the credentials file. The scheme is described in the
Amazon S3 API reference, "Authenticating Requests (AWS Signature Version 4)". Every payload is signed by its
SHA-256, so that the server itself refuses bytes that were damaged on the way.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import re
import time
from dataclasses import dataclass, field
from typing import Dict, Mapping, Optional, Tuple
from urllib.parse import quote

from freegpu.agent.stores.base import StoreError

EMPTY_SHA256 = hashlib.sha256().hexdigest()
_WORDS = re.compile(r"[!-~]+")
_NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass(frozen=True)
class AccessKey:
    """What requests are signed with; `token` comes with keys that last for hours only."""

    identity: str = field(repr=False)
    secret: str = field(repr=False)
    token: Optional[str] = field(default=None, repr=False)


def query_of(parameters: Mapping[str, str]) -> str:
    """The canonical query string; send it exactly so."""
    return "&".join(
        f"{quote(name, safe='-_.~')}={quote(parameters[name], safe='-_.~')}"
        for name in sorted(parameters)
    )


def signed(
    method: str,
    host: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    *,
    key: AccessKey,
    region: str,
    now: float,
    payload: str = EMPTY_SHA256,
) -> Dict[str, str]:
    """The headers with the signature among them.

    `path` and `query` are as they go over the wire (`query_of`), `now` is in seconds since 1970, `payload` the
    body's SHA-256 in hex. Signed are Host and what begins with x-amz-; proxies may touch the rest.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    own = {**headers, "x-amz-date": stamp, "x-amz-content-sha256": payload}
    if key.token:
        own["x-amz-security-token"] = key.token
    told = {name.lower(): " ".join(value.split()) for name, value in own.items()}
    told = {name: value for name, value in told.items() if name.startswith("x-amz-")}
    told["host"] = host
    names = ";".join(sorted(told))
    lines = "".join(f"{name}:{told[name]}\n" for name in sorted(told))
    request = "\n".join((method, path, query, lines, names, payload))
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    to_sign = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, digest))
    signature = hmac.new(
        _signing_key(key.secret, stamp[:8], region), to_sign.encode(), hashlib.sha256
    ).hexdigest()
    own["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={key.identity}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return own


@functools.lru_cache(maxsize=8)
def _signing_key(secret: str, day: str, region: str) -> bytes:
    found = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        found = hmac.new(found, part.encode(), hashlib.sha256).digest()
    return found


def find_key(secrets: Mapping[str, str]) -> AccessKey:
    """The key among the secrets, else in the environment, else in the credentials file (AWS_PROFILE).

    StoreError, not transient: there is none, or it is damaged.
    """
    for found in (secrets, os.environ):
        if found.get(_NAMES[0], "").strip() and found.get(_NAMES[1], "").strip():
            return _checked(tuple(found.get(name) for name in _NAMES), "the secrets")
    path = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    profile = os.environ.get("AWS_PROFILE") or "default"
    section = _section(os.path.expanduser(path), profile)
    if section.get(_NAMES[0].lower()) and section.get(_NAMES[1].lower()):
        return _checked(tuple(section.get(name.lower()) for name in _NAMES), path)
    message = (
        f"no key for the S3 store: set {_NAMES[0]} and {_NAMES[1]}, "
        f"or write them into {path} under [{profile}]"
    )
    raise _final(message)


def named(key: AccessKey) -> Dict[str, str]:
    """The key by the names under which `find_key` looks for it."""
    return {n: v for n, v in zip(_NAMES, (key.identity, key.secret, key.token)) if v}


def _section(path: str, profile: str) -> Mapping[str, str]:
    from configparser import Error, RawConfigParser

    parser = RawConfigParser()
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, Error) as error:
        # the parser's own message quotes the line, and with it the secret
        message = f"the credentials file {path} cannot be read ({type(error).__name__})"
        raise _final(message) from None
    return dict(parser[profile]) if parser.has_section(profile) else {}


def _checked(found: Tuple[Optional[str], ...], where: str) -> AccessKey:
    parts = [value.strip() if value else "" for value in found]
    for name, value in zip(_NAMES, parts):
        if value and not _WORDS.fullmatch(value):
            raise _final(f"{name} in {where} has characters that no key has: copy it again")
    return AccessKey(parts[0], parts[1], parts[2] or None)


def _final(message: str) -> StoreError:
    error = StoreError(message)
    error.transient = False
    return error
