"""The orchestrator's end of a session's mailbox: tickets out, events and heartbeats in.

Believes only what is signed with the session's key; what cannot be read yet is simply not there yet.
Knows nothing of the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from freegpu.agent import wire
from freegpu.agent.stores.base import ObjectMissing, Store
from freegpu.agent.wire import Manifest, Unreadable


class Mailbox:
    """One session's mailbox; `key` is the session's own."""

    def __init__(self, store: Store, session: str, key: bytes) -> None:
        self.store = store
        self.session = session
        self.key = key

    def post(self, seq: int, ticket: Mapping[str, Any]) -> None:
        """Lay a ticket into the inbox, once: a second call with the same seq changes nothing."""
        data = wire.pack({**ticket, "session": self.session, "seq": seq}, self.key)
        self.store.put_new(wire.inbox_key(self.session, seq), data)

    def posted(self, seq: int) -> bool:
        """Whether this ticket lies in the inbox, as far as we can see."""
        return self.store.stat(wire.inbox_key(self.session, seq)) is not None

    def hello(self) -> dict[str, Any] | None:
        """The agent's first word; None: not yet."""
        return self._read(wire.hello_key(self.session))

    def beat(self) -> dict[str, Any] | None:
        """The agent's last sign of life; None: none, or torn (which is silence)."""
        return self._read(wire.agent_beat_key(self.session))

    def events(self, after: int) -> Iterator[dict[str, Any]]:
        """Events with a seq above `after`, in order, up to the first that cannot be read yet."""
        seq = after + 1
        while True:
            event = self._read(wire.outbox_key(self.session, seq))
            if event is None or event.get("seq") != seq:
                return
            yield event
            seq += 1

    def answer(
        self, counter: int, outbox_ack: int, confirmed: Mapping[str, int], waiting: int
    ) -> None:
        """Our own heartbeat: what we have handled, which generations are confirmed, how many jobs wait."""
        message = {
            "counter": counter,
            "outbox_ack": outbox_ack,
            "confirmed": dict(confirmed),
            "waiting": waiting,
        }
        self.store.put(
            wire.orchestrator_beat_key(self.session),
            wire.pack({**message, "session": self.session}, self.key),
        )

    def _read(self, key: str) -> dict[str, Any] | None:
        try:
            message = wire.unpack(self.store.get(key), self.key)
        except (ObjectMissing, Unreadable):
            return None
        # a message copied from another session of this home would not even fit the key; this is for twins
        return message if message.get("session") == self.session else None


def read_manifest(store: Store, key: str, digest: str) -> Manifest | None:
    """The manifest with this digest; None: not (wholly) there yet."""
    try:
        return Manifest.from_bytes(store.get(key), digest)
    except (ObjectMissing, Unreadable):
        return None


def missing_blob(
    store: Store, manifest: Manifest, verified: Collection[str] = frozenset()
) -> str | None:
    """The key of a blob that is not there or not what it should be; None: all were verified.

    Each distinct blob is read once, from the store, by us: what the writer believes does not count. Of those that
    were `verified` before, only the size is asked: blobs are never changed, and a frozen model of many GB would be
    read again with each checkpoint of its adapters.
    """
    seen: set[str] = set()
    for part in manifest.blobs():
        if part.key in seen:
            continue
        seen.add(part.key)
        known = part.key in verified
        found = store.stat(part.key, digest=not known)
        if found is None or found.size != part.size:
            return part.key
        if not known and found.sha256 != part.sha256:
            return part.key
    return None
