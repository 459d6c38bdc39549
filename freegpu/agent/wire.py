"""What lies in the store, byte for byte: paths, signed messages, manifests, log segments.

Read by the orchestrator and by the agent, so that there is one definition of each. Everything here is
pure. docs/protocol.md says in which order things are written and what breaks otherwise.

Messages are signed with the session's key (HMAC-SHA256), which travels in the launch payload and never
lies in the store: a stranger who may write into the shared folder cannot make an agent run anything, and
a torn or stale read fails the signature like a forged one, so it is retried and never believed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

#: the version of messages, and of manifests whose parts are whole blobs
FORMAT = 1
#: of manifests with several parts in one blob
FORMAT_RANGES = 2

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
#: begins the id of a session that a person started with a cell; planned ones begin with "s-"
_GUEST = "n-"


class Unreadable(Exception):  # noqa: N818 - torn, stale or forged: the reader tries again, so no "error"
    """These bytes are not (yet) the message they should be."""


# --- paths -----------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    """An id that is safe as one part of a key; ValueError otherwise."""
    if not _NAME.fullmatch(name):
        message = f"not an id: {name!r}"
        raise ValueError(message)
    return name


def agent_key(sha256: str) -> str:
    return f"agent/freegpu-agent-{sha256[:16]}.pyz"


def input_key(sha256: str) -> str:
    """Where the orchestrator lays a code bundle or an input."""
    return f"blobs/{sha256[:2]}/{sha256}"


def hello_key(session: str) -> str:
    return f"sessions/{check_name(session)}/hello.json"


def cell_prefix(cell: str) -> str:
    """Where the sessions that a person started with an agent cell announce themselves."""
    return f"cells/{check_name(cell)}"


def announcement_key(cell: str, session: str) -> str:
    return f"{cell_prefix(cell)}/{check_name(session)}.json"


def guest_session(cell: str, nonce: str) -> str:
    """The id of a session that begins in a notebook: nobody else can have given it one."""
    return check_name(f"{_GUEST}{check_name(cell)}-{nonce}")


def cell_of(session: str) -> str:
    """The cell that a session began with; "" for one that the orchestrator planned."""
    return session.split("-")[1] if session.startswith(_GUEST) else ""


def agent_beat_key(session: str) -> str:
    return f"sessions/{check_name(session)}/agent-beat.json"


def orchestrator_beat_key(session: str) -> str:
    return f"sessions/{check_name(session)}/orchestrator-beat.json"


def inbox_prefix(session: str) -> str:
    return f"sessions/{check_name(session)}/inbox"


def outbox_prefix(session: str) -> str:
    return f"sessions/{check_name(session)}/outbox"


def inbox_key(session: str, seq: int) -> str:
    return f"{inbox_prefix(session)}/{seq:06d}.json"


def outbox_key(session: str, seq: int) -> str:
    return f"{outbox_prefix(session)}/{seq:06d}.json"


def log_prefix(attempt: str) -> str:
    return f"attempts/{check_name(attempt)}/log"


def log_key(attempt: str, seq: int) -> str:
    return f"{log_prefix(attempt)}/{seq:06d}.txt"


def attempt_blob_key(attempt: str, sha256: str) -> str:
    """Where an attempt lays the parts of its checkpoints and outputs; it alone writes there."""
    return f"attempts/{check_name(attempt)}/blobs/{sha256}"


def outputs_key(attempt: str) -> str:
    return f"attempts/{check_name(attempt)}/outputs.json"


def checkpoint_prefix(job: str) -> str:
    return f"jobs/{check_name(job)}/checkpoints"


def checkpoint_key(job: str, epoch: int, generation: int) -> str:
    return f"{checkpoint_prefix(job)}/{epoch:06d}-{generation:06d}.json"


# --- canonical bytes, digests, signatures --------------------------------------------------------------


def canonical(value: Any) -> bytes:
    """One spelling of a JSON value: what is signed and hashed."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode("ascii")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def cell_key(home_key: bytes, cell: str) -> bytes:
    """The key that an agent cell carries: good for the sessions that begin with it, and for no others."""
    return hmac.new(home_key, b"freegpu cell " + cell.encode(), hashlib.sha256).digest()


def guest_key(cell_key: bytes, session: str) -> bytes:
    """The key of a session that began with this cell's key."""
    return hmac.new(cell_key, b"freegpu guest " + session.encode(), hashlib.sha256).digest()


def session_key(home_key: bytes, session: str) -> bytes:
    """The key of one session, derived, so that the ledger need not hold it."""
    cell = cell_of(session)
    if cell:
        return guest_key(cell_key(home_key, cell), session)
    return hmac.new(home_key, b"freegpu session " + session.encode(), hashlib.sha256).digest()


def _signature(key: bytes, body: Mapping[str, Any]) -> str:
    return hmac.new(key, canonical(body), hashlib.sha256).hexdigest()


def pack(message: Mapping[str, Any], key: bytes) -> bytes:
    """A message as signed bytes."""
    body = {"format": FORMAT, **message}
    return canonical({**body, "signature": _signature(key, body)})


def unpack(data: bytes, key: bytes) -> Dict[str, Any]:
    """The message in these bytes. Unreadable: torn, stale, forged or of a newer format."""
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError) as error:
        message = "not JSON (torn, or still on its way)"
        raise Unreadable(message) from error
    if not isinstance(whole, dict) or not isinstance(whole.get("signature"), str):
        message = "not a signed message"
        raise Unreadable(message)
    signature = whole.pop("signature")
    try:
        expected = _signature(key, whole)
    except (ValueError, RecursionError) as error:
        # NaN in JSON is Python's invention, and nobody signed it
        message = "not canonical JSON"
        raise Unreadable(message) from error
    # half a surrogate pair is a str that no encoding takes, but for this one
    if not hmac.compare_digest(signature.encode("utf-8", "surrogatepass"), expected.encode()):
        message = "the signature does not fit"
        raise Unreadable(message)
    if whole.get("format") != FORMAT:
        message = f"format {whole.get('format')!r}, not {FORMAT}"
        raise Unreadable(message)
    return whole


def seal(key: bytes, nonce: bytes, secrets: Mapping[str, str]) -> str:
    """Secrets for a ticket: encrypt, then authenticate (HMAC-SHA256 in counter mode, fresh 16-byte nonce).

    The standard library has no cipher, and the agent has nothing else; a PRF in counter mode under its own
    derived keys is the textbook one.
    """
    if len(nonce) != 16:
        message = "a nonce has 16 bytes"
        raise ValueError(message)
    clear = canonical(dict(secrets))
    mixed = _keystream_xor(key, nonce, clear)
    tag = hmac.new(_subkey(key, b"seal mac"), nonce + mixed, hashlib.sha256).digest()
    return (nonce + mixed + tag).hex()


def unseal(key: bytes, sealed: str) -> Dict[str, str]:
    """What `seal` sealed. Unreadable if it was changed or sealed under another key."""
    try:
        data = bytes.fromhex(sealed)
    except ValueError as error:
        message = "sealed secrets are not hexadecimal"
        raise Unreadable(message) from error
    nonce, mixed, tag = data[:16], data[16:-32], data[-32:]
    expected = hmac.new(_subkey(key, b"seal mac"), nonce + mixed, hashlib.sha256).digest()
    if len(data) < 48 or not hmac.compare_digest(tag, expected):
        message = "sealed secrets do not open with this session's key"
        raise Unreadable(message)
    opened: Dict[str, str] = json.loads(_keystream_xor(key, nonce, mixed))
    return opened


def _subkey(key: bytes, purpose: bytes) -> bytes:
    return hmac.new(key, b"freegpu " + purpose, hashlib.sha256).digest()


def _keystream_xor(key: bytes, nonce: bytes, data: bytes) -> bytes:
    cipher = _subkey(key, b"seal cipher")
    stream = b"".join(
        hmac.new(cipher, nonce + block.to_bytes(8, "big"), hashlib.sha256).digest()
        for block in range((len(data) + 31) // 32)
    )
    return bytes(a ^ b for a, b in zip(data, stream))


# --- the launch payload ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot:
    """One card (or group of cards) that can run one attempt."""

    index: int
    #: model name as in the card table, or "CPU"
    card: str
    #: device ids for CUDA_VISIBLE_DEVICES; empty on a CPU slot
    gpus: Tuple[str, ...] = ()
    #: memory of one card in GB; 0 on a CPU slot
    vram_gb: float = 0.0
    #: what this card does fast: bf16, fp16 or fp32
    precision: str = "fp32"


@dataclass(frozen=True)
class Profile:
    """All that an agent is told at launch: who it is, where its mailbox lies, how long it has."""

    session: str
    home: str
    platform: str
    #: the session's key in hexadecimal; see session_key
    key: str
    #: URL for stores.open_store
    store: str
    #: a local folder that the agent may fill: working folders, spools, staging
    work: str
    slots: Tuple[Slot, ...]
    #: seconds from the agent's start until the platform ends the session; None: no limit known
    limit_s: Optional[float] = None
    #: end by itself after this many seconds without work
    idle_s: float = 60.0
    #: look into the inbox this often, seconds
    poll_s: float = 1.0
    #: write a heartbeat this often, seconds
    beat_s: float = 2.0
    #: beyond a job's grace, seconds kept before the limit for the last upload
    margin_s: float = 20.0
    #: bytes a second for uploads; None: no limit
    bandwidth: Optional[float] = None
    #: what a probe found of the store (the fields of stores.base.Properties); None: nobody has probed it
    known: Optional[Dict[str, Any]] = None
    #: keep view.json in the work folder, for a person who looks at the notebook
    view: bool = False

    def to_json(self) -> Dict[str, Any]:
        """As plain JSON: what a platform hands on to the agent, and what --dry-run shows."""
        slots = [{**asdict(slot), "gpus": list(slot.gpus)} for slot in self.slots]
        return {"format": FORMAT, **asdict(self), "slots": slots}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Profile":
        """ValueError if it is not a profile that this agent understands."""
        if data.get("format") != FORMAT:
            message = (
                f"launch profile has format {data.get('format')!r}, this agent speaks {FORMAT}"
            )
            raise ValueError(message)
        fields = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        try:
            fields["slots"] = tuple(
                Slot(**{**slot, "gpus": tuple(slot["gpus"])}) for slot in fields["slots"]
            )
            return cls(**fields)
        except (KeyError, TypeError) as error:
            message = f"launch profile is incomplete: {error}"
            raise ValueError(message) from error


# --- tickets (orchestrator to agent) ------------------------------------------------------------------------

#: kinds of tickets
RUN, STOP, CANCEL, DRAIN, BYE = "run", "stop", "cancel", "drain", "bye"


@dataclass(frozen=True)
class Base:
    """The checkpoint to start from: one manifest, by name and digest, nothing else will do."""

    key: str
    sha256: str
    epoch: int
    generation: int


@dataclass(frozen=True)
class Run:
    """Run this attempt in that slot."""

    job: str
    attempt: str
    #: 1 for a job's first attempt
    number: int
    epoch: int
    slot: int
    name: str
    run: str
    setup: str = ""
    envs: Dict[str, str] = field(default_factory=dict)
    #: see seal; "" when there are none
    secrets: str = ""
    #: SHA-256 of the code bundle (a .tar.gz under input_key); "" for none
    bundle: str = ""
    base: Optional[Base] = None
    #: the checkpoint folder as the spec names it, relative to the working folder
    checkpoint_path: str = "ckpt"
    #: seconds between looks for a new checkpoint to commit
    checkpoint_every_s: float = 600.0
    keep: int = 2
    grace_s: float = 120.0
    #: pause the job after this many unconfirmed checkpoints; None: never pause
    window: Optional[int] = None
    #: globs of results, relative to the working folder
    outputs: Tuple[str, ...] = ()

    def to_json(self) -> Dict[str, Any]:
        return {"kind": RUN, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Run":
        """Unreadable if a field is missing; unknown ones are left for newer agents."""
        fields = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        try:
            fields["outputs"] = tuple(fields.get("outputs", ()))
            if fields.get("base"):
                fields["base"] = Base(**fields["base"])
            run = cls(**fields)
            check_name(run.job)
            check_name(run.attempt)
        except (KeyError, TypeError, ValueError) as error:
            message = f"run ticket is incomplete: {error}"
            raise Unreadable(message) from error
        return run


def stop_ticket(job: str, epoch: int, reason: str) -> Dict[str, Any]:
    """Save and stop whatever attempt of this job has an epoch below `epoch`.

    `reason` is the end reason to report: preempted (somebody asked for the slot, or `interrupt`) or
    superseded (a newer attempt exists: the result no longer matters, be quick).
    """
    return {"kind": STOP, "job": job, "epoch": epoch, "reason": reason}


def cancel_ticket(job: str, epoch: int) -> Dict[str, Any]:
    """Stop every attempt of this job with an epoch up to `epoch`; nobody wants the result."""
    return {"kind": CANCEL, "job": job, "epoch": epoch}


def drain_ticket() -> Dict[str, Any]:
    """Finish what runs, take nothing new, then end the session."""
    return {"kind": DRAIN}


def bye_ticket() -> Dict[str, Any]:
    """Stop what runs as if the limit had come, then end the session."""
    return {"kind": BYE}


def pack_ticket(session: str, seq: int, ticket: Mapping[str, Any], key: bytes) -> bytes:
    """A ticket as it lies in the inbox. Its number is signed: laid under another one it is no ticket."""
    return pack({**ticket, "session": session, "seq": seq}, key)


def unpack_ticket(data: bytes, session: str, seq: int, key: bytes) -> Dict[str, Any]:
    """The ticket with this number. Unreadable: torn, forged, or copied from another place."""
    ticket = unpack(data, key)
    if ticket.get("session") != session or ticket.get("seq") != seq:
        message = f"a ticket of another place: {ticket.get('session')!r} {ticket.get('seq')!r}"
        raise Unreadable(message)
    if not isinstance(ticket.get("kind"), str) or ticket["kind"] in EVENTS:
        message = "not a ticket"
        raise Unreadable(message)
    return ticket


# --- events (agent to orchestrator) ----------------------------------------------------------------------------

#: kinds of events; each carries session, seq, time, and all but hello-like ones job, attempt, epoch
STARTED, CHECKPOINT, ENDED, REFUSED, NOTICE = "started", "checkpoint", "ended", "refused", "notice"
EVENTS = (STARTED, CHECKPOINT, ENDED, REFUSED, NOTICE)

# started:    {"resumed": bool, "step": int|None}          the command runs (setup is done)
# checkpoint: {"key", "sha256", "generation", "step", "size", "age_s", "sent", "stored"}   manifest written; age_s: seconds since its files
#              were last changed; sent: bytes put for it; stored: the store's own digests of what was put are right
# ended:      {"reason", "exit_code": int|None, "signal": int|None, "detail": str, "outputs": {"key","sha256"}|None,
#              "progress": {...}|None, "seconds": run time, "log_segments": int}
# refused:    {"detail"}                                    the ticket cannot be run here (base unreadable, slot taken, bundle bad)
# notice:     {"code", "detail"}                            disk_full, store_away, store_back, log_truncated, checkpoint_unstable, ...


# --- manifests ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A piece of a file: the blob that holds it, and where in it."""

    #: of the blob: its key, SHA-256 and bytes
    key: str
    sha256: str
    size: int
    #: the piece is bytes [at, at + length) of the blob; -1: all of it
    at: int = 0
    length: int = -1
    #: SHA-256 of the piece; "": the piece is the blob
    digest: str = ""

    @property
    def bytes(self) -> int:
        """Of the piece."""
        return self.size if self.length < 0 else self.length

    @property
    def piece(self) -> str:
        """SHA-256 of the piece."""
        return self.digest or self.sha256


@dataclass(frozen=True)
class File:
    """A file of a checkpoint or of the outputs; parts in order."""

    path: str
    size: int
    sha256: str
    mtime_ns: int
    mode: int
    parts: Tuple[Part, ...]


@dataclass(frozen=True)
class Manifest:
    """What makes a checkpoint valid; written after all its blobs."""

    job: str
    attempt: str
    epoch: int
    generation: int
    step: Optional[int]
    #: seconds since 1970 by the agent's clock: for people, never for decisions
    created: float
    files: Tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def blobs(self) -> Iterable[Part]:
        """Every part; several may lie in one blob."""
        for file in self.files:
            yield from file.parts

    def to_bytes(self) -> bytes:
        """Format 1, as every agent reads it, where each part is a whole blob; else format 2."""
        whole = {name: getattr(self, name) for name in _MANIFEST_HEAD}
        order = {part.key: part for part in self.blobs()}
        if all(part.length < 0 for part in self.blobs()):
            whole["format"] = FORMAT
            parts = [[_plain(part) for part in file.parts] for file in self.files]
        else:
            whole["format"] = FORMAT_RANGES
            whole["blobs"] = [[p.key.split("/")[1], p.sha256, p.size] for p in order.values()]
            number = {key: index for index, key in enumerate(order)}
            parts = [[_short(p, number[p.key], file) for p in file.parts] for file in self.files]
        whole["files"] = [
            {**{name: getattr(file, name) for name in _FILE_HEAD}, "parts": each}
            for file, each in zip(self.files, parts)
        ]
        return canonical(whole)

    @classmethod
    def from_bytes(cls, data: bytes, digest: str) -> "Manifest":
        """The manifest with this SHA-256, of either format. Unreadable if the bytes are not it."""
        if sha256(data) != digest:
            message = "the manifest is not the one that was named"
            raise Unreadable(message)
        try:
            whole = json.loads(data)
            version = whole.pop("format")
            if version not in (FORMAT, FORMAT_RANGES):
                message = f"the manifest has another format ({version!r}): a newer freegpu wrote it"
                raise Unreadable(message)
            blobs = [
                (attempt_blob_key(attempt, sha), sha, size)
                for attempt, sha, size in (whole.pop("blobs") if version != FORMAT else ())
            ]
            files = []
            for file in whole.pop("files"):
                if version == FORMAT:
                    parts = tuple(Part(**part) for part in file["parts"])
                else:
                    parts = tuple(_long(part, blobs, file["sha256"]) for part in file["parts"])
                files.append(File(**{**file, "parts": parts}))
                _check_file(files[-1])
            return cls(files=tuple(files), **whole)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            message = f"the manifest does not make sense: {error}"
            raise Unreadable(message) from error


_MANIFEST_HEAD = ("job", "attempt", "epoch", "generation", "step", "created")
_FILE_HEAD = ("path", "size", "sha256", "mtime_ns", "mode")
_BLOB_KEY = re.compile(r"attempts/[a-z0-9][a-z0-9-]{0,62}/blobs/([0-9a-f]{64})")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def _plain(part: Part) -> Any:
    return {"key": part.key, "sha256": part.sha256, "size": part.size}


def _short(part: Part, blob: int, file: File) -> Any:
    if part.length < 0:
        return [blob]
    own = [] if part.digest == file.sha256 else [part.digest]
    return [blob, part.at, part.length, *own]


def _long(short: List[Any], blobs: List[Tuple[str, str, int]], whole: str) -> Part:
    blob, *rest = short
    if blob < 0 or len(rest) not in (0, 2, 3):
        message = f"not a part: {short!r}"
        raise ValueError(message)
    return Part(*blobs[blob], *rest, *([whole] if len(rest) == 2 else []))


def _check_file(file: File) -> None:
    """ValueError, TypeError: it would leave its folder, read what is no blob, or does not add up."""
    check_relative(file.path)
    for part in file.parts:
        named = _BLOB_KEY.fullmatch(part.key)
        if named is None or named.group(1) != part.sha256:
            message = f"not the key of this blob: {part.key!r}"
            raise ValueError(message)
        within = part.length >= 0 and part.at >= 0 and part.at + part.length <= part.size
        if (part.at, part.length, part.digest) != (0, -1, "") and not (
            within and _SHA256.fullmatch(part.digest)
        ):
            message = f"not a range of its blob: {part.key!r} {part.at!r} {part.length!r}"
            raise ValueError(message)
    if sum(part.bytes for part in file.parts) != file.size or file.size < 0:
        message = f"the parts of {file.path!r} do not add up to it"
        raise ValueError(message)


def check_relative(path: str) -> str:
    """A path that stays inside its folder; ValueError otherwise."""
    parts = path.split("/")
    if not path or path.startswith("/") or "\0" in path or any(p in ("", ".", "..") for p in parts):
        message = f"path leaves its folder: {path!r}"
        raise ValueError(message)
    return path


# --- log segments ---------------------------------------------------------------------------------------------------

_LOG_HEAD = re.compile(rb"freegpu-log 1 (\d{1,12}) ([0-9a-f]{64})\n")


def pack_log(text: bytes) -> bytes:
    """A log segment: one header line with length and SHA-256, then the raw output."""
    return b"freegpu-log 1 %d %s\n" % (len(text), sha256(text).encode()) + text


def unpack_log(data: bytes) -> bytes:
    """The output in a segment. Unreadable if torn."""
    head = _LOG_HEAD.match(data)
    text = data[head.end() :] if head else b""
    if not head or len(text) != int(head.group(1)) or sha256(text) != head.group(2).decode():
        message = "log segment is torn"
        raise Unreadable(message)
    return text
