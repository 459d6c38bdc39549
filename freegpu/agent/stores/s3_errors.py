"""What an S3 server's refusals mean, in sentences. Pure.

Codes are those of the Amazon S3 API reference, "Error responses", and of the servers that imitate it.
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import Optional

from freegpu.agent.stores.base import ObjectMissing, StoreError, StoreFull, StoreGone
from freegpu.agent.stores.http import LATER, Reply

#: codes that mean "later", whatever status they come with; damaged on the way is among them
_LATER = re.compile(
    "BadDigest|ConditionalRequestConflict|IncompleteBody|InternalError|OperationAborted|RequestTimeout"
    "|ServiceUnavailable|SlowDown|Throttling|ThrottlingException|XAmzContentSHA256Mismatch"
)
_OTHER_PLACE = re.compile(
    "AuthorizationHeaderMalformed|IllegalLocationConstraintException|PermanentRedirect|Redirect"
    "|TemporaryRedirect"
)
_FULL = re.compile(r"quota|storagefull|storagecap|capexceeded|insufficientstorage", re.IGNORECASE)


def code_of(reply: Reply) -> str:
    """The error's code; empty if the answer is none, or has none (answers to HEAD never have)."""
    if reply.status < 300 and b"<Error" not in reply.body[:512]:
        return ""
    return _element(reply, "Code")


def _element(reply: Reply, name: str) -> str:
    found = re.search(rb"<%b>\s*([\w.:/-]+)\s*</%b>" % ((name.encode(),) * 2), reply.body[:65536])
    return found.group(1).decode() if found else ""


def means_later(reply: Reply) -> bool:
    """Whether the same request may succeed in a moment."""
    return reply.status == 409 or _LATER.fullmatch(code_of(reply)) is not None


def explained(reply: Reply, host: str, bucket: str, now: float) -> StoreError:
    """The error to raise. `now` is this machine's clock, in seconds since 1970; no part of a key is told."""
    code, status = code_of(reply), reply.status
    error: Optional[StoreError] = None
    final = True
    if code == "NoSuchBucket":
        error = StoreGone(f"the bucket {bucket} is not there at {host}")
    elif status == 404:
        error = ObjectMissing(f"an object is not in the bucket {bucket}")
    elif status == 507 or _FULL.search(code):
        error = StoreFull(f"the bucket {bucket} at {host} is full ({code or status})")
    if error is not None:
        return error
    if code == "RequestTimeTooSkewed":
        message = (
            f"this machine's clock is wrong ({_skew(reply, now)}), so {host} believes no "
            "signature: set the clock"
        )
    elif code == "InvalidAccessKeyId":
        message = f"{host} does not know the access key: check AWS_ACCESS_KEY_ID"
    elif code == "SignatureDoesNotMatch":
        message = (
            f"{host} says that the signature is wrong: check AWS_SECRET_ACCESS_KEY, "
            "and the region in the store's URL"
        )
    elif code in ("ExpiredToken", "InvalidToken", "TokenRefreshRequired"):
        message = f"{host} says that AWS_SESSION_TOKEN is expired or wrong: make a new key"
    elif _OTHER_PLACE.fullmatch(code) or 300 <= status < 400:
        region = reply.headers.get("x-amz-bucket-region") or _element(reply, "Region")
        what = f"region={region}" if region else "another region or endpoint"
        message = f"the bucket {bucket} is elsewhere: the store's URL must say {what}"
    elif status in (401, 403):
        message = (
            f"{host} does not let this key into the bucket {bucket} ({code or status}): it must "
            "be allowed to list, read, write and delete there"
        )
    elif code in ("EntityTooLarge", "EntityTooSmall"):
        message = f"{host} does not take an object of this size ({code})"
    else:
        message = f"{host} refused a request for the bucket {bucket} ({code or status})"
        final = status < 500 and status not in LATER and not means_later(reply)
    error = StoreError(message)
    error.transient = not final
    return error


def _skew(reply: Reply, now: float) -> str:
    try:
        there = parsedate_to_datetime(reply.headers.get("date", "")).timestamp()
    except (ValueError, TypeError, OverflowError):
        return "more than 15 minutes off"
    minutes = round(abs(now - there) / 60)
    return f"{minutes} minutes {'ahead' if now > there else 'behind'}"
