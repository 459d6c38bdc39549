"""Where an S3 store is: its URL taken apart."""

from __future__ import annotations

import os
import re
from typing import Tuple
from urllib.parse import parse_qsl, urlsplit

from freegpu.agent.stores.base import is_key


def place(rest: str) -> Tuple[str, str, str, str]:
    """Bucket, prefix (empty, or with a slash at its end), endpoint and region of a store's URL."""
    parts = urlsplit(f"s3:{rest}")
    try:
        pairs = parse_qsl(parts.query, strict_parsing=True, keep_blank_values=True)
    except ValueError:
        pairs = [("", "")] if parts.query else []
    told = dict(pairs)
    if "@" in parts.netloc or parts.fragment:
        raise ValueError(
            "an S3 store's URL is s3://BUCKET/PREFIX?endpoint=...; no key stands in it"
        )
    if len(told) != len(pairs) or not set(told) <= {"endpoint", "region"}:
        raise ValueError("after the ? of an S3 store's URL come endpoint= and region=, each once")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}", parts.netloc):
        raise ValueError(f"not a bucket's name: {parts.netloc!r}; the URL is s3://BUCKET/PREFIX")
    prefix = parts.path.strip("/")
    if prefix and not is_key(prefix):
        raise ValueError(f"not a prefix for a store: {prefix!r}; letters, digits, . _ - and /")
    endpoint = told.get("endpoint", "").rstrip("/")
    region = told.get("region", "")
    if not re.fullmatch(r"[A-Za-z0-9-]*", region):
        raise ValueError(f"not a region: {region!r}")
    if not endpoint:
        region = region or _usual_region() or "us-east-1"
        endpoint = f"https://s3.{region}.amazonaws.com"
    elif not re.fullmatch(
        r"https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+)(:\d+)?(/[\w.~/-]+)?", endpoint
    ):
        raise ValueError("the endpoint of an S3 store is https://HOST or https://HOST:PORT")
    named = re.match(r"https?://s3[.]([a-z]+(-[a-z]+)+-\d+)[.]", endpoint)
    region = region or (named.group(1) if named else _usual_region() or "us-east-1")
    return parts.netloc, f"{prefix}/" if prefix else "", endpoint, region


def _usual_region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
