"""What lies in the store, byte for byte: nothing torn, stale, forged or hostile is ever believed."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from freegpu.agent import wire
from freegpu.agent.stores.base import check_key
from freegpu.agent.wire import Unreadable

KEY, OTHER = b"k" * 32, b"o" * 32
SEEDS = range(25)


def any_json(rng: random.Random, depth: int = 3) -> Any:
    """Some JSON value."""
    kinds = ["int", "float", "text", "flag", "none", *(["list", "dict"] if depth else [])]
    match rng.choice(kinds):
        case "int":
            return rng.randint(-(10**12), 10**12)
        case "float":
            return rng.uniform(-1e6, 1e6)
        case "text":
            return "".join(rng.choice('aZ0 "\\\n\0é家🎲\u2028') for _ in range(rng.randrange(12)))
        case "flag":
            return rng.random() < 0.5
        case "list":
            return [any_json(rng, depth - 1) for _ in range(rng.randrange(4))]
        case "dict":
            return {f"k{n}": any_json(rng, depth - 1) for n in range(rng.randrange(4))}
    return None


def any_message(rng: random.Random) -> dict[str, Any]:
    return {f"field{n}": any_json(rng) for n in range(rng.randrange(1, 6))}


# --- messages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_packed_message_comes_back_as_it_was(seed: int) -> None:
    """Any JSON, under the right key; the format is added."""
    message = any_message(random.Random(seed))
    assert wire.unpack(wire.pack(message, KEY), KEY) == {**message, "format": wire.FORMAT}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_message_that_was_changed_anywhere_is_unreadable(seed: int) -> None:
    """Every cut, and a changed byte at any place, two hundred of them: torn, never believed."""
    rng = random.Random(seed)
    data = wire.pack(any_message(rng), KEY)
    for _ in range(100):
        with pytest.raises(Unreadable):
            wire.unpack(data[: rng.randrange(len(data))], KEY)
        at = rng.randrange(len(data))
        forged = data[:at] + bytes(((data[at] + rng.randrange(1, 256)) % 256,)) + data[at + 1 :]
        try:
            read = wire.unpack(forged, KEY)
        except Unreadable:
            continue
        # a byte may change without a change of meaning: E+3 for e+3
        assert wire.pack(read, KEY) == data


def test_a_message_under_another_key_or_none_is_unreadable() -> None:
    """Another session's key, a truncated signature, none at all."""
    message = {"kind": "run", "seq": 1}
    data = wire.pack(message, KEY)
    with pytest.raises(Unreadable, match="signature"):
        wire.unpack(data, OTHER)
    body = json.loads(data)
    for signature in ("", body["signature"][:-1], body["signature"].upper(), None, 7, "\ud800"):
        with pytest.raises(Unreadable):
            wire.unpack(json.dumps({**body, "signature": signature}).encode(), KEY)
    with pytest.raises(Unreadable):
        wire.unpack(json.dumps(message).encode(), KEY)


def test_a_message_of_another_format_is_unreadable_even_if_it_is_signed() -> None:
    """A newer orchestrator's message is not half understood."""
    with pytest.raises(Unreadable, match="format 2"):
        wire.unpack(wire.pack({"format": 2, "kind": "run"}, KEY), KEY)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 100,
        b"\xff\xfe",
        b"null",
        b"[]",
        b'"text"',
        b'{"signature": "x"}',
        b'{"signature": "x", "n": NaN}',
        b'{"signature": "\\ud800"}',
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"signature": "x", "a": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"signature": "x", "n": ' + b"9" * 10_000 + b"}",
    ],
    ids=lambda data: repr(data[:24]),
)
def test_garbage_of_any_kind_is_unreadable_and_nothing_else(data: bytes) -> None:
    """Whoever may write into the folder can stop nobody with a strange file."""
    with pytest.raises(Unreadable):
        wire.unpack(data, KEY)


def test_a_ticket_counts_only_in_its_own_place() -> None:
    """Copied to another number or session, or an event laid into the inbox: no ticket."""
    data = wire.pack_ticket("s-a", 3, wire.drain_ticket(), KEY)
    assert wire.unpack_ticket(data, "s-a", 3, KEY)["kind"] == wire.DRAIN
    for session, seq in (("s-a", 4), ("s-b", 3)):
        with pytest.raises(Unreadable, match="another place"):
            wire.unpack_ticket(data, session, seq, KEY)
    for kind in (*wire.EVENTS, None, 5):
        event = wire.pack({"kind": kind, "session": "s-a", "seq": 3}, KEY)
        with pytest.raises(Unreadable, match="not a ticket"):
            wire.unpack_ticket(event, "s-a", 3, KEY)


def test_sessions_have_keys_of_their_own_and_homes_too() -> None:
    """Derived, so that equal inputs agree and any other does not."""
    keys = {wire.session_key(home, session) for home in (KEY, OTHER) for session in ("s-a", "s-b")}
    assert len(keys) == 4
    assert wire.session_key(KEY, "s-a") in keys
    assert KEY not in keys


# --- sealed secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_sealed_secrets_open_with_the_key_and_show_nothing_without(seed: int) -> None:
    """Any text, of any length; neither names nor values are visible; another key opens nothing."""
    rng = random.Random(seed)
    secrets = {
        f"NAME_{n}": "".join(rng.choice("abcé家=\n\"'$") for _ in range(rng.randrange(200)))
        for n in range(rng.randrange(5))
    }
    sealed = wire.seal(KEY, rng.randbytes(16), secrets)
    assert wire.unseal(KEY, sealed) == secrets
    assert b"NAME" not in bytes.fromhex(sealed)
    with pytest.raises(Unreadable):
        wire.unseal(OTHER, sealed)


@pytest.mark.parametrize("seed", SEEDS)
def test_sealed_secrets_that_were_changed_do_not_open(seed: int) -> None:
    """Any bit, any cut, anything appended."""
    rng = random.Random(seed)
    data = bytes.fromhex(wire.seal(KEY, rng.randbytes(16), {"TOKEN": "t" * rng.randrange(100)}))
    bit = rng.randrange(len(data) * 8)
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    for changed in (bytes(flipped), data[: rng.randrange(len(data))], data + b"\0"):
        with pytest.raises(Unreadable):
            wire.unseal(KEY, changed.hex())


@pytest.mark.parametrize("sealed", ["", "00", "zz", "é", "ab" * 47, "ab" * 48])
def test_what_was_never_sealed_does_not_open(sealed: str) -> None:
    """Too short, not hexadecimal, or merely wrong."""
    with pytest.raises(Unreadable):
        wire.unseal(KEY, sealed)


def test_a_nonce_is_fresh_and_of_its_length() -> None:
    """Two nonces, two texts; a nonce of another length is refused."""
    assert wire.seal(KEY, b"1" * 16, {"A": "b"}) != wire.seal(KEY, b"2" * 16, {"A": "b"})
    with pytest.raises(ValueError, match="16 bytes"):
        wire.seal(KEY, b"short", {})


# --- manifests -------------------------------------------------------------------------------------------


def blob(data: bytes, attempt: str = "abc123-1") -> wire.Part:
    digest = wire.sha256(data)
    return wire.Part(wire.attempt_blob_key(attempt, digest), digest, len(data))


def file(path: str = "state.pt", *datas: bytes) -> wire.File:
    whole = b"".join(datas)
    return wire.File(path, len(whole), wire.sha256(whole), 1, 0o644, tuple(map(blob, datas)))


def manifest(*files: wire.File) -> wire.Manifest:
    return wire.Manifest("abc123", "abc123-1", 3, 7, 70, 1.5, files)


def reread(made: wire.Manifest) -> wire.Manifest:
    data = made.to_bytes()
    return wire.Manifest.from_bytes(data, wire.sha256(data))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_manifest_comes_back_as_it_was_and_names_all_its_blobs(seed: int) -> None:
    """Any number of files and parts; the size is the sum of the files."""
    rng = random.Random(seed)
    files = tuple(
        file(
            f"d{rng.randrange(9)}/f {n}é",
            *(rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(4))),
        )
        for n in range(rng.randrange(5))
    )
    made = manifest(*files)
    assert reread(made) == made
    assert list(made.blobs()) == [part for one in files for part in one.parts]
    assert made.size == sum(part.size for part in made.blobs())


def packed(*contents: bytes) -> wire.Manifest:
    """Files that lie in one blob, each of them in two pieces if it has more than one byte."""
    whole = b"".join(contents)
    key = wire.attempt_blob_key("abc123-1", wire.sha256(whole))
    files, at = [], 0
    for number, data in enumerate(contents):
        parts = []
        for piece in filter(None, (data[:1], data[1:])):
            place = (at, len(piece), wire.sha256(piece))
            parts.append(wire.Part(key, wire.sha256(whole), len(whole), *place))
            at += len(piece)
        digest = wire.sha256(data)
        files.append(wire.File(f"f{number}", len(data), digest, 5, 0o644, tuple(parts)))
    return manifest(*files)


def test_a_manifest_with_several_pieces_in_a_blob_is_one_of_format_2() -> None:
    """It comes back as it was, names the blob once, and an agent that knows only format 1 refuses it by that."""
    made = packed(b"abc", b"", b"d", b"ef")
    assert reread(made) == made
    assert [(part.at, part.bytes) for part in made.blobs()] == [
        (0, 1),
        (1, 2),
        (3, 1),
        (4, 1),
        (5, 1),
    ]
    text = json.loads(made.to_bytes())
    assert text["format"] == 2
    assert text["blobs"] == [["abc123-1", wire.sha256(b"abcdef"), 6]]
    assert text["files"][2]["parts"] == [[0, 3, 1]], (
        "the piece is the file: its digest stands there"
    )
    newer = made.to_bytes().replace(b'"format":2', b'"format":3')
    with pytest.raises(Unreadable, match="a newer freegpu wrote it"):
        wire.Manifest.from_bytes(newer, wire.sha256(newer))


def test_whole_blobs_are_written_in_format_1_as_ever() -> None:
    """Older agents and orchestrators go on reading them."""
    data = manifest(file("a", b"1")).to_bytes()
    digest = wire.sha256(b"1")
    key = f"attempts/abc123-1/blobs/{digest}"
    assert json.loads(data)["format"] == 1
    assert json.loads(data)["files"][0]["parts"] == [{"key": key, "sha256": digest, "size": 1}]


@pytest.mark.parametrize(
    "parts",
    [
        [[0, 0, 7]],
        [[0, -1, 6]],
        [[0, 6, 6]],
        [[1]],
        [[-1]],
        [[]],
        [[0, 0]],
        [[0, 0, 6, "f" * 63]],
        [[0, 0, 6, "F" * 64]],
        [[0, 0, 6, None]],
        [[0, "0", 6]],
        [[0, 0, 6, "f" * 64, 1]],
        [[0, 0, 5, "f" * 64]],
        [[0, 0, None]],
        "0",
        [0],
        None,
    ],
)
def test_pieces_that_do_not_lie_in_their_blob_are_unreadable(parts: Any) -> None:
    """Whoever may write into the store cannot make anybody read elsewhere, or raise anything else."""
    text = json.loads(packed(b"abcdef").to_bytes())
    text["files"][0]["parts"] = parts
    data = wire.canonical(text)
    with pytest.raises(Unreadable):
        wire.Manifest.from_bytes(data, wire.sha256(data))


@pytest.mark.parametrize(
    "blob", [["../x", "f" * 64, 6], ["a-1", "../../etc", 6], ["a-1", "f" * 64], 5]
)
def test_a_blob_that_is_none_is_unreadable(blob: Any) -> None:
    """Its key is made of an attempt and a digest, and of nothing else."""
    text = json.loads(packed(b"abcdef").to_bytes())
    text["blobs"] = [blob]
    text["files"][0]["parts"] = [[0]]
    data = wire.canonical(text)
    with pytest.raises(Unreadable):
        wire.Manifest.from_bytes(data, wire.sha256(data))


def test_a_manifest_is_believed_only_under_the_digest_that_was_named() -> None:
    """Another whole manifest at the same place is not the one that was meant."""
    data = manifest(file("a", b"1")).to_bytes()
    other = manifest(file("a", b"2")).to_bytes()
    for wrong in (data[:-1], b"", other):
        with pytest.raises(Unreadable, match="not the one"):
            wire.Manifest.from_bytes(wrong, wire.sha256(data))


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "./a", "a//b", "a/", "a\0b", "a/./b"],
    ids=ascii,
)
def test_a_manifest_whose_paths_leave_their_folder_is_unreadable(path: str) -> None:
    """What is restored or pulled stays below its folder."""
    with pytest.raises(Unreadable, match="leaves its folder"):
        reread(manifest(file(path, b"x")))
    with pytest.raises(ValueError, match="leaves its folder"):
        wire.check_relative(path)


@pytest.mark.parametrize(
    "path", ["a", "a b/c.d", "..a", "a..", "...", "-rf", "家/é", "a\nb", "~"], ids=ascii
)
def test_odd_paths_that_stay_inside_are_kept(path: str) -> None:
    """Odd is not hostile."""
    assert wire.check_relative(path) == path
    assert reread(manifest(file(path, b"x"))).files[0].path == path


def test_a_manifest_reads_blobs_of_attempts_and_nothing_else() -> None:
    """A key that is no blob's, or another blob's, is not followed: it would make a reader fetch anything."""
    good = file("a", b"x")
    (part,) = good.parts
    digest = part.sha256
    for key in (
        "freegpu.json",
        f"../attempts/abc123-1/blobs/{digest}",
        f"attempts/../blobs/{digest}",
        f"attempts/abc123-1/blobs/{wire.sha256(b'other')}",
        f"blobs/{digest[:2]}/{digest}",
        f"attempts/abc123-1/blobs/{digest}\n",
    ):
        with pytest.raises(Unreadable, match="key of this blob"):
            reread(manifest(replace(good, parts=(replace(part, key=key),))))


def test_a_manifest_whose_parts_do_not_add_up_is_unreadable() -> None:
    """A file is exactly its parts."""
    good = file("a", b"xx", b"yyy")
    for wrong in (
        replace(good, size=4),
        replace(good, size=-5),
        replace(good, parts=good.parts[:1]),
    ):
        with pytest.raises(Unreadable, match="add up"):
            reread(manifest(wrong))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"format": 2, "files": []}',
        '{"format": 1, "files": 3}',
        '{"format": 1, "files": [{"path": "a"}]}',
        '{"format": 1, "files": [], "unknown": 1}',
        "[" * 200_000,
    ],
    ids=lambda text: repr(text[:24]),
)
def test_a_manifest_without_sense_is_unreadable(text: str) -> None:
    """Even with the right digest: an agent may have written nonsense."""
    data = text.encode()
    with pytest.raises(Unreadable):
        wire.Manifest.from_bytes(data, wire.sha256(data))


# --- log segments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_segment_comes_back_whole_or_not_at_all(seed: int) -> None:
    """Any bytes, also ones that look like a header; every cut and any appended byte are torn."""
    rng = random.Random(seed)
    text = rng.choice([b"", b"\n", wire.pack_log(b"inner"), rng.randbytes(300)])
    data = wire.pack_log(text)
    assert wire.unpack_log(data) == text
    for torn in (data[: rng.randrange(len(data))], data + b"x", b"x" + data, b""):
        with pytest.raises(Unreadable):
            wire.unpack_log(torn)
    if text:
        at = len(data) - 1 - rng.randrange(len(text))
        with pytest.raises(Unreadable):
            wire.unpack_log(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])


# --- profile, run tickets, keys ------------------------------------------------------------------------------


def profile() -> wire.Profile:
    slot = wire.Slot(index=0, card="T4", gpus=("0", "1"), vram_gb=16.0, precision="fp16")
    return wire.Profile(
        session="s-a",
        home="h",
        platform="blue",
        key="00",
        store="folder:/x",
        work="/w",
        slots=(slot,),
    )


def test_a_profile_travels_as_json() -> None:
    """Equal afterwards; fields that a newer orchestrator adds are left alone."""
    data = json.loads(json.dumps(profile().to_json()))
    assert wire.Profile.from_json(data) == profile()
    assert wire.Profile.from_json({**data, "new_field": 1}) == profile()


@pytest.mark.parametrize(
    "damage", [{"format": 2}, {"slots": None}, {"slots": [3]}, {"slots": [{}]}], ids=str
)
def test_a_profile_that_is_not_understood_is_refused(damage: dict[str, Any]) -> None:
    """The agent ends with a sentence and not with half a profile."""
    with pytest.raises(ValueError, match="launch profile"):
        wire.Profile.from_json({**profile().to_json(), **damage})
    without = {name: value for name, value in profile().to_json().items() if name != "key"}
    with pytest.raises(ValueError, match="incomplete"):
        wire.Profile.from_json(without)


def test_a_run_ticket_travels_as_json_with_its_base() -> None:
    """Equal afterwards; unknown fields are left for newer agents."""
    run = wire.Run(
        job="abc123",
        attempt="abc123-2",
        number=2,
        epoch=5,
        slot=0,
        name="it's a name",
        run="python x.py",
        envs={"A": "b"},
        base=wire.Base(
            key="jobs/abc123/checkpoints/000004-000002.json", sha256="0" * 64, epoch=4, generation=2
        ),
        outputs=("results/**",),
    )
    data = json.loads(json.dumps(run.to_json()))
    assert wire.Run.from_json({**data, "new_field": 1}) == run
    for damage in ({"job": "../x"}, {"attempt": "A B"}, {"base": {"key": "x"}}, {"base": 7}):
        with pytest.raises(Unreadable, match="run ticket"):
            wire.Run.from_json({**data, **damage})
    del data["epoch"]
    with pytest.raises(Unreadable, match="run ticket"):
        wire.Run.from_json(data)


@pytest.mark.parametrize(
    "name", ["", "A", "a_b", "a/b", "..", ".", "-a", "a b", "a" * 64, "é", "a\n"], ids=ascii
)
def test_an_id_that_could_leave_its_place_makes_no_key(name: str) -> None:
    """Ids become parts of keys and of paths."""
    for make in (
        wire.hello_key,
        wire.inbox_prefix,
        wire.log_prefix,
        wire.outputs_key,
        wire.checkpoint_prefix,
    ):
        with pytest.raises(ValueError, match="not an id"):
            make(name)


def test_every_key_is_one_that_stores_take_and_numbers_sort() -> None:
    """Listing by name is listing by number, up to a million."""
    digest = wire.sha256(b"")
    for key in (
        wire.agent_key(digest),
        wire.input_key(digest),
        wire.hello_key("s-a"),
        wire.agent_beat_key("s-a"),
        wire.orchestrator_beat_key("s-a"),
        wire.inbox_key("s-a", 1),
        wire.outbox_key("s-a", 1),
        wire.log_key("a-1", 1),
        wire.attempt_blob_key("a-1", digest),
        wire.outputs_key("a-1"),
        wire.checkpoint_key("abc123", 1, 2),
    ):
        assert check_key(key) == key
    numbers = [1, 9, 10, 99, 100, 999_999]
    assert sorted(wire.outbox_key("s", n) for n in reversed(numbers)) == [
        wire.outbox_key("s", n) for n in numbers
    ]
