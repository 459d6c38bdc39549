"""The working folder as an archive, there and back."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import socket
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from freegpu.agent.unpack import UnpackError, unpack
from freegpu.errors import WorkdirError
from freegpu.jobs import bundle


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def lay(root: Path, *names: str, text: str = "x") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(plan: bundle.Plan) -> list[str]:
    return [entry.name for entry in plan.entries]


def there_and_back(plan: bundle.Plan, tmp_path: Path) -> Path:
    packed = bundle.write(plan, tmp_path / "packed.tar.gz")
    into = tmp_path / "into"
    unpack(packed.path, into)
    return into


def test_the_same_files_make_the_same_bytes_whatever_their_times_and_order(tmp_path: Path) -> None:
    """Content decides: neither mtime nor the order of creation shows in the archive."""
    digests = set()
    for at, order in enumerate((("a", "b/c", "d"), ("d", "b/c", "a"))):
        folder = tmp_path / f"w{at}"
        lay(folder, *order)
        os.utime(folder / "a", (at * 1000, at * 1000))
        digests.add(bundle.write(bundle.plan(folder), tmp_path / f"{at}.tar.gz").sha256)
    assert len(digests) == 1
    assert (tmp_path / "0.tar.gz").read_bytes()[4:8] == bytes(4)  # gzip's own time stamp


def test_the_digest_and_size_are_those_of_the_file(work: Path, tmp_path: Path) -> None:
    """What the ledger will hold is what lies on the disk."""
    lay(work, "a", "b")
    packed = bundle.write(bundle.plan(work), tmp_path / "p.tar.gz")
    data = packed.path.read_bytes()
    assert (packed.sha256, packed.size, packed.files) == (
        hashlib.sha256(data).hexdigest(),
        len(data),
        2,
    )


def test_odd_names_contents_and_exec_bits_survive_the_round_trip(
    work: Path, tmp_path: Path
) -> None:
    """Newlines, quotes, Unicode, bytes that are no UTF-8, long names, empty folders and empty files."""
    odd = [
        "two\nlines",
        'it\'s "quoted"',
        "中文 名",
        "-dash",
        " space ",
        "é/ü/ñ",
        "n" * 240,
        "e\\s",
    ]
    for at, name in enumerate(odd):
        lay(work, name, text=str(at))
    raw = os.path.join(os.fsencode(work), b"not\xff\xfeutf8")
    Path(os.fsdecode(raw)).write_bytes(b"\0\xff")
    (work / "empty").mkdir()
    (work / "run.sh").write_text("")
    (work / "run.sh").chmod(0o700)
    into = there_and_back(bundle.plan(work), tmp_path)
    for at, name in enumerate(odd):
        assert (into / name).read_text() == str(at)
    assert (
        Path(os.fsdecode(os.path.join(os.fsencode(into), b"not\xff\xfeutf8"))).read_bytes()
        == b"\0\xff"
    )
    assert (into / "empty").is_dir()
    assert stat.S_IMODE((into / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((into / "-dash").stat().st_mode) == 0o644


def test_gitignore_and_freegpuignore_are_honoured_also_in_deeper_folders(work: Path) -> None:
    """The deepest file that says anything decides; .freegpuignore is stronger than .gitignore beside it."""
    lay(
        work,
        "keep.py",
        "a.log",
        "data/big.bin",
        "sub/b.log",
        "sub/keep.log",
        "sub/deep/c.log",
        "x.tmp",
    )
    (work / ".gitignore").write_text("*.log\ndata/\n")
    (work / ".freegpuignore").write_text("*.tmp\n!data/\n")
    (work / "sub/.gitignore").write_text("!keep.log\n/deep\n")
    plan = bundle.plan(work)
    assert names(plan) == [
        ".freegpuignore",
        ".gitignore",
        "data/big.bin",
        "keep.py",
        "sub/.gitignore",
        "sub/keep.log",
    ]
    assert plan.ignored == 4
    assert plan.skipped == ()


def test_repositories_caches_and_environments_never_go_in(work: Path) -> None:
    """Not even where no ignore file names them."""
    lay(work, ".git/HEAD", "m.py", "__pycache__/m.pyc", "old.pyc", ".venv/bin/python", "s/.git/x")
    lay(work, "s/.ipynb_checkpoints/n.ipynb")
    assert names(bundle.plan(work)) == ["m.py", "s"]


def test_what_the_caller_leaves_out_is_told(work: Path) -> None:
    """The store inside the working folder stays out, with the reason."""
    lay(work, "home/store/blob", "m.py")
    plan = bundle.plan(work, leave_out={str(work / "home"): "it is freegpu's own folder"})
    assert names(plan) == ["m.py"]
    assert [str(one) for one in plan.skipped] == ["home is left out: it is freegpu's own folder"]


def test_links_inside_stay_links_and_those_that_lead_out_are_told(
    work: Path, tmp_path: Path
) -> None:
    """A link is never followed, so a loop is harmless; an absolute one becomes relative."""
    lay(work, "d/file")
    lay(tmp_path, "outside")
    (work / "in").symlink_to("d/file")
    (work / "absolute").symlink_to(work / "d")
    (work / "out").symlink_to("../outside")
    (work / "d/up").symlink_to("..")
    (work / "sneaky").symlink_to("d/up/..")  # inside as written, outside as followed
    (work / "loop-a").symlink_to("loop-b")
    (work / "loop-b").symlink_to("loop-a")
    (work / "self").symlink_to(".")
    (work / "etc").symlink_to("/etc")
    plan = bundle.plan(work)
    assert sorted(one.name for one in plan.skipped) == ["etc", "out", "sneaky"]
    assert all("outside the folder" in one.reason for one in plan.skipped)
    into = there_and_back(plan, tmp_path)
    assert os.readlink(into / "in") == "d/file"
    assert os.readlink(into / "absolute") == "d"
    assert os.readlink(into / "loop-a") == "loop-b"
    assert (into / "self/in").read_text() == "x"


def test_sockets_and_pipes_are_left_out_and_told(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a pipe would wait for ever."""
    lay(work, "m.py")
    os.mkfifo(work / "pipe")
    monkeypatch.chdir(work)  # a socket's path may have 107 bytes only
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("sock")
        plan = bundle.plan(work)
    assert names(plan) == ["m.py"]
    assert [str(one) for one in plan.skipped] == [
        "pipe is left out: a named pipe, not a file",
        "sock is left out: a socket, not a file",
    ]


def test_a_folder_of_10_gb_is_refused_at_once_with_the_five_largest(work: Path) -> None:
    """Only looked at, never read; the sentence names total, limit, five files and .freegpuignore."""
    for at in range(1, 8):
        with (work / f"f{at}.bin").open("wb") as file:
            file.truncate(at * 10**10 // 28)
    start = time.perf_counter()
    with pytest.raises(WorkdirError) as caught:
        bundle.plan(work)
    assert time.perf_counter() - start < 1
    message = caught.value.message
    assert "holds 10.0 GB, more than 1.0 GB" in message
    assert message.index("f7.bin (2.5 GB)") < message.index("f3.bin (1.1 GB)")
    assert "f2.bin" not in message
    assert ".freegpuignore" in caught.value.hint
    (work / ".freegpuignore").write_text("*.bin\n")
    assert bundle.plan(work).size == len("*.bin\n")


def test_a_working_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    """Also when a file stands in its place."""
    with pytest.raises(WorkdirError, match="does not exist"):
        bundle.plan(tmp_path / "gone")
    assert bundle.plan("").entries == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_cannot_be_read_is_named(tmp_path: Path, what: str) -> None:
    """A file that is silently missing in a session costs hours."""
    script = (
        "import os,sys; from freegpu.jobs import bundle; from freegpu.errors import WorkdirError\n"
        "os.seteuid(65534)\n"
        "try: bundle.plan(sys.argv[1])\n"
        "except WorkdirError as error: print(error)\n"
    )
    for folder in (tmp_path, *tmp_path.parents):
        if folder != Path("/") and not folder.stat().st_mode & 0o005:
            folder.chmod(0o755)
    lay(tmp_path, "w/closed/file" if what == "folder" else "w/closed")
    (tmp_path / "w/closed").chmod(0)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "w")],
        capture_output=True,
        text=True,
        check=False,
    )
    (tmp_path / "w/closed").chmod(0o755)
    assert done.stdout.strip().lower().endswith("w/closed cannot be read: permission denied"), done


def test_a_file_that_grows_is_packed_to_its_planned_length(work: Path, tmp_path: Path) -> None:
    """A log that is written to while freegpu packs is no reason to stop."""
    lay(work, "log", text="first")
    plan = bundle.plan(work)
    (work / "log").write_text("first and more")
    assert (there_and_back(plan, tmp_path) / "log").read_text() == "first"


@pytest.mark.parametrize("how", ["shrunk", "gone", "link", "pipe"])
def test_a_file_that_changes_otherwise_is_refused_and_leaves_nothing(
    work: Path, tmp_path: Path, how: str
) -> None:
    """No half archive, and nothing is followed or waited for."""
    lay(work, "a", text="content")
    plan = bundle.plan(work)
    if how == "shrunk":
        (work / "a").write_text("c")
    else:
        (work / "a").unlink()
    if how == "link":
        lay(tmp_path, "elsewhere", text="long enough to be packed")
        (work / "a").symlink_to(tmp_path / "elsewhere")
    if how == "pipe":
        os.mkfifo(work / "a")
    target = tmp_path / "out/p.tar.gz"
    target.parent.mkdir()
    with pytest.raises(WorkdirError, match=r"a .*while it was packed"):
        bundle.write(plan, target)
    assert list(target.parent.iterdir()) == []


def test_a_place_that_takes_no_archive_is_one_sentence(work: Path, tmp_path: Path) -> None:
    """A missing folder, a full or read-only disk."""
    lay(work, "a")
    with pytest.raises(WorkdirError, match="cannot be written: No such file"):
        bundle.write(bundle.plan(work), tmp_path / "nowhere/p.tar.gz")
    if os.path.exists("/dev/full"):
        full = tmp_path / "full"
        full.mkdir()
        (full / f".p.{os.getpid()}.part").symlink_to("/dev/full")
        with pytest.raises(WorkdirError, match="No space left"):
            bundle.write(bundle.plan(work), full / "p")


def test_mounts_replace_files_merge_into_folders_and_ignore_gitignore(
    work: Path, tmp_path: Path
) -> None:
    """Mounted data is often just what .gitignore keeps out of the repository."""
    lay(work, "m.py", "data/old", "conf")
    (work / ".gitignore").write_text("data/\n")
    lay(tmp_path, "sets/new", "sets/skip.bin", "other")
    (tmp_path / "sets/.gitignore").write_text("*\n")
    (tmp_path / "sets/.freegpuignore").write_text("*.bin\n")
    mounts = {
        "data": str(tmp_path / "sets"),
        "conf": str(tmp_path / "other"),
        "a/b": str(tmp_path / "other"),
    }
    plan = bundle.plan(work, mounts)
    wanted = [
        ".gitignore",
        "a/b",
        "conf",
        "data/.freegpuignore",
        "data/.gitignore",
        "data/new",
        "m.py",
    ]
    assert names(plan) == wanted
    assert next(e for e in plan.entries if e.name == "conf").source == str(tmp_path / "other")


@pytest.mark.parametrize(("target", "word"), [("m.py/x", "a file"), ("ln/x", "a link")])
def test_a_mount_below_a_file_or_link_is_refused(
    work: Path, tmp_path: Path, target: str, word: str
) -> None:
    """It could not be laid out in the session."""
    lay(work, "m.py", "d/x")
    (work / "ln").symlink_to("d")
    lay(tmp_path, "other")
    with pytest.raises(WorkdirError, match=f"is {word} and a folder at once"):
        bundle.plan(work, {target: str(tmp_path / "other")})


# --- hostile archives ----------------------------------------------------------------------------------


def crafted(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "hostile",
    [
        [(member("../evil"), b"x")],
        [(member("/tmp/freegpu-evil"), b"x")],
        [(member("a/../../evil"), b"x")],
        [(member("."), b"x")],
        [(member("l", tarfile.SYMTYPE, "/etc"), b"")],
        [(member("l", tarfile.SYMTYPE, "../.."), b"")],
        [
            (member("d/l", tarfile.SYMTYPE, ".."), b""),
            (member("m", tarfile.SYMTYPE, "d/l/.."), b""),
        ],
        [(member("l", tarfile.SYMTYPE, "up"), b""), (member("l/x", tarfile.SYMTYPE, "y"), b"")],
        [(member("up", tarfile.SYMTYPE, ".."), b""), (member("up/evil"), b"x")],
        [(member("h", tarfile.LNKTYPE, "/etc/passwd"), b"")],
        [(member("dev", tarfile.CHRTYPE), b"")],
        [(member("pipe", tarfile.FIFOTYPE), b"")],
        [(member("twice"), b"1"), (member("twice"), b"2")],
        [(member("f"), b"1"), (member("f/x"), b"2")],
    ],
    ids=lambda members: "+".join(info.name for info, _ in members),
)
def test_an_archive_that_leads_out_is_refused(
    tmp_path: Path, hostile: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    """Nothing appears beside the folder, and no link of it leads out."""
    into = tmp_path / "a/b/into"
    with pytest.raises(UnpackError):
        unpack(crafted(tmp_path / "x.tar.gz", *hostile), into)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "x.tar.gz"]
    assert [p.name for p in (tmp_path / "a/b").iterdir()] == ["into"]
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"]
    assert not any(p.is_symlink() and not p.resolve().is_relative_to(into) for p in into.rglob("*"))
    assert not Path("/tmp/freegpu-evil").exists()


def test_an_archive_larger_than_allowed_is_refused_before_it_fills_the_disk(tmp_path: Path) -> None:
    """By the size it declares, by its number of things, and by the length of its headers."""
    big = crafted(tmp_path / "b.tar.gz", (member("zeros"), bytes(2 << 20)))
    with pytest.raises(UnpackError, match="holds more than"):
        unpack(big, tmp_path / "1", limit=1 << 20)
    assert list((tmp_path / "1").iterdir()) == []
    with pytest.raises(UnpackError, match="holds more than"):
        unpack(
            crafted(tmp_path / "m.tar.gz", *((member(str(n)), b"") for n in range(9))),
            tmp_path / "2",
            members=8,
        )
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    with gzip.open(tmp_path / "h.tar.gz", "wb") as file:
        file.write(header.tobuf(tarfile.USTAR_FORMAT) + bytes(1 << 20))
    with pytest.raises(UnpackError, match="absurdly long header"):
        unpack(tmp_path / "h.tar.gz", tmp_path / "3")


def test_a_damaged_archive_never_raises_anything_else(work: Path, tmp_path: Path) -> None:
    """Cut or flipped anywhere: UnpackError, or the right content where the damage does not matter."""
    lay(work, "a.txt", "d/b.txt", text="content " * 200)
    whole = bundle.write(bundle.plan(work), tmp_path / "w.tar.gz").path.read_bytes()
    broken = tmp_path / "b.tar.gz"
    damaged = [whole[:n] for n in range(0, len(whole), 7)]
    damaged += [
        whole[:n] + bytes([whole[n] ^ 0x55]) + whole[n + 1 :] for n in range(0, len(whole), 3)
    ]
    refused = 0
    for at, data in enumerate(damaged):
        broken.write_bytes(data)
        into = tmp_path / f"o{at}"
        try:
            unpack(broken, into)
        except UnpackError:
            refused += 1
        else:
            assert (
                (into / "a.txt").read_text() == (into / "d/b.txt").read_text() == "content " * 200
            )
    # what gets by: the head of gzip, and bits that can say the same content in another way
    assert refused > len(damaged) * 0.9


def test_a_full_disk_is_an_os_error_and_not_a_bad_archive(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent reports it as a full disk and tries elsewhere."""
    lay(work, "a")
    packed = bundle.write(bundle.plan(work), tmp_path / "p.tar.gz").path
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OSError, match="file"):
        unpack(packed, blocked / "into")


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13"])
def test_the_agents_pythons_open_what_is_packed_here(
    work: Path, tmp_path: Path, version: str
) -> None:
    """A session has the platform's Python, not ours."""
    import shutil

    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    python = str(found[0]) if found else shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"no Python {version} here")
    lay(work, "run.sh", "d/中文", text="x" * 1500)
    (work / "run.sh").chmod(0o755)
    (work / "l").symlink_to("d/中文")
    packed = bundle.write(bundle.plan(work), tmp_path / "p.tar.gz").path
    script = "import sys; from freegpu.agent.unpack import unpack; print(unpack(sys.argv[1], sys.argv[2]))"
    root = Path(bundle.__file__).parents[2]
    done = subprocess.run(
        [python, "-W", "error", "-c", script, str(packed), str(tmp_path / "into")],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "3000", done.stderr
    assert (tmp_path / "into/l").read_text() == "x" * 1500
    assert os.access(tmp_path / "into/run.sh", os.X_OK)
