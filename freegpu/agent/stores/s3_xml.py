"""What S3 servers tell in XML. Pure."""

from __future__ import annotations

import calendar
import time
from email.utils import parsedate_to_datetime
from typing import List, Optional
from xml.etree import ElementTree

from freegpu.agent.stores.base import StoreError
from freegpu.agent.stores.http import Reply


def parsed(reply: Reply, host: str) -> ElementTree.Element:
    """The answer's root. StoreError: it is no XML, as from a login page; or it brings its own entities."""
    try:
        if b"<!DOCTYPE" in reply.body or b"<!ENTITY" in reply.body:
            raise ElementTree.ParseError  # noqa: TRY301 - what expands without end is as good as broken
        return ElementTree.fromstring(reply.body)  # noqa: S314 - no entities, see above
    except ElementTree.ParseError:
        message = f"{host} does not answer as an S3 server does: check the endpoint"
        raise StoreError(message) from None


def tag(element: ElementTree.Element) -> str:
    """Its name without the namespace, which not every server sends."""
    return element.tag.rpartition("}")[2]


def texts(root: ElementTree.Element, *path: str) -> List[str]:
    """The texts of all elements at this path below the root."""
    found = [root]
    for name in path:
        found = [child for element in found for child in element if tag(child) == name]
    return [element.text or "" for element in found]


def moment(text: str) -> Optional[float]:
    """Seconds since 1970 of `2026-12-01T10:00:00.000Z`; None if it is no such thing."""
    try:
        return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def moment_of(reply: Reply, otherwise: float) -> float:
    """When the server says that it answered, seconds since 1970."""
    try:
        return parsedate_to_datetime(reply.headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError, OverflowError):
        return otherwise
