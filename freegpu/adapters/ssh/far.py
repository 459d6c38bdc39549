"""What runs on the host, for a moment, whenever the adapter has a question: one JSON in, one JSON out.

It is sent over the connection each time and leaves nothing behind but the sessions it was asked to start. It must run
on Python 3.9 alone. Its words are read between two marks, because a shell's start-up files may print as well.

~/.freegpu/sessions/NAME/   profile.json, access.json (until the agent has read it), work/, agent.log; and
    started     written before the agent is: a key is started once, even if we die right here
    process     /proc/PID/stat of the session's first process and the boot it belongs to, noted by itself
    exit        the agent's exit code, by rename
~/.freegpu/agents/SHA.pyz   agents, by what is in them
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

#: what is asked and what is answered, as JSON
Told = Dict[str, Any]
#: state, group, session and start in ticks of a process
Stat = Tuple[bytes, int, int, int]

ROOT = os.path.join(os.path.expanduser("~"), ".freegpu")
#: another file stands in for it under test, where no machine can be restarted
BOOT = os.environ.get("FREEGPU_BOOT_ID") or "/proc/sys/kernel/random/boot_id"
LINUX = os.path.exists("/proc/self/stat")
#: seconds for nvidia-smi: a broken driver may never answer
SMI_S = 10.0
#: seconds for another start of the same key to come to its end
SETTLE_S = 10.0
#: seconds after which an agent that no session uses is removed
OLD_S = 7 * 86400.0
PAGE = 1 << 16

#: The first process of a session. It notes who it is, waits for the agent whatever signal comes, and notes the exit
#: code last. $1: its folder, $2: the file with the boot's id; the rest is the command.
RUN = """umask 077
place=$1 boot=$2; shift 2
{ cat /proc/$$/stat; cat "$boot"; } >"$place/process.new" && mv "$place/process.new" "$place/process" || exit 70
trap : TERM INT HUP
nice -n 10 "$@"
code=$?
echo $code >"$place/exit.new" && mv "$place/exit.new" "$place/exit"
exit $code
"""


def place_of(key: str) -> str:
    return os.path.join(ROOT, "sessions", key)


def read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def write(path: str, data: bytes) -> None:
    """A private file, whole or not at all."""
    hidden = path + ".new%d" % os.getpid()
    try:
        with open(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        os.replace(hidden, path)
    except OSError:
        # a full disk must not keep half a secret
        with contextlib.suppress(OSError):
            os.unlink(hidden)
        raise


def folder(path: str) -> str:
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


@contextlib.contextmanager
def locked(path: str) -> Iterator[bool]:
    """Alone for the block. On a home without locks the atomic mkdir below must do."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        end = time.monotonic() + SETTLE_S
        held = False
        while not held:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    break
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        yield held
    finally:
        os.close(descriptor)


def stat_of(pid: int) -> Optional[Stat]:
    """What /proc says of a process; None: there is none."""
    return parse_stat(read("/proc/%d/stat" % pid))


def parse_stat(data: bytes) -> Optional[Stat]:
    # the name in brackets may hold anything, also brackets
    words = data.rpartition(b")")[2].split()
    try:
        return words[0], int(words[2]), int(words[3]), int(words[19])
    except (IndexError, ValueError):
        return None


def noted(place: str) -> Optional[Tuple[int, int, bytes]]:
    """(pid, start, boot) as the session's first process has noted them; None: it has not."""
    lines = read(os.path.join(place, "process")).rpartition(b"\n")[0].rpartition(b"\n")
    stat = parse_stat(lines[0])
    if stat is None:
        return None
    return int(lines[0].split()[0]), stat[3], lines[2].strip()


def members(place: str) -> List[int]:
    """Living processes of a session's group; empty when it is over. A pid alone is never believed."""
    known = noted(place)
    if known is None or known[2] != read(BOOT).strip():
        return []
    pid, start, _ = known
    stat = stat_of(pid)
    if stat is not None and stat[0] != b"Z" and stat[3] == start:
        return [pid]
    # the first process was killed and the agent lives on: it has our folder in its arguments
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = stat_of(int(name))
            if stat is None or stat[2] != pid or stat[0] == b"Z" or stat[3] < start:
                continue
            if os.fsencode(place) in read("/proc/%s/cmdline" % name):
                found.append(int(name))
    return found


def sessions() -> List[str]:
    try:
        return sorted(os.listdir(os.path.join(ROOT, "sessions")))
    except OSError:
        return []


def living(but: str = "") -> List[str]:
    """Sessions that run here now."""
    return [key for key in sessions() if key != but and members(place_of(key))]


# --- what may be asked --------------------------------------------------------------------------------------


def offers(asked: Told) -> Told:
    return {**cards(asked["idle_mb"]), "held": held(living()), **machine()}


def machine() -> Told:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (ValueError, OSError):
        memory = 0.0
    try:
        cpus = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cpus = os.cpu_count() or 1
    return {"memory_gb": memory, "cpus": cpus, "disk_gb": disk()}


def disk() -> float:
    where = ROOT if os.path.isdir(ROOT) else os.path.dirname(ROOT)
    try:
        return shutil.disk_usage(where).free / 1e9
    except OSError:
        return 0.0


def held(keys: List[str]) -> Dict[str, List[str]]:
    """Sessions that run, and the cards of each."""
    found: Dict[str, List[str]] = {}
    for key in keys:
        try:
            profile = json.loads(read(os.path.join(place_of(key), "profile.json")))
            found[key] = [gpu for slot in profile["slots"] for gpu in slot["gpus"]]
        except (ValueError, KeyError, TypeError):
            found[key] = []
    return found


def cards(idle_mb: int) -> Told:
    """The cards as nvidia-smi tells them, and which of them somebody uses. `smi`: ok, none, hangs or fails."""
    told, smi = ask_driver()
    if smi in ("hangs", "fails"):
        # one of the two answers may have come: a card of which nobody can tell who uses it is not free
        return {"cards": [], "smi": smi}
    busy: Dict[str, List[str]] = {}
    for uuid, pid in rows(told["apps"], 2):
        busy.setdefault(uuid, []).append(pid)
    found = []
    for index, name, memory, uuid, driver, used in rows(told["cards"], 6):
        pids = busy.get(uuid, [])
        why = "process %s" % ", ".join(pids) if pids else ""
        if not why and whole(used) > idle_mb:
            why = "%d MiB of it are in use" % whole(used)
        found.append(
            {
                "index": index,
                "name": name,
                "mb": whole(memory),
                "uuid": uuid,
                "driver": driver,
                "used": why,
            }
        )
    return {"cards": found, "smi": smi}


def rows(text: str, width: int) -> List[Tuple[str, ...]]:
    parted = (tuple(part.strip() for part in line.split(",")) for line in text.splitlines())
    return [row for row in parted if len(row) == width]


def whole(text: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return 0  # MIG parents and some virtual cards say [N/A]


def ask_driver() -> Tuple[Dict[str, str], str]:
    """nvidia-smi's own words; both questions at once, for each takes a second where no driver is kept loaded."""
    questions = {
        "cards": "--query-gpu=index,name,memory.total,uuid,driver_version,memory.used",
        "apps": "--query-compute-apps=gpu_uuid,pid",
    }
    asked: Dict[str, "subprocess.Popen[bytes]"] = {}
    told = {"cards": "", "apps": ""}
    for name, question in questions.items():
        with contextlib.suppress(OSError):
            asked[name] = subprocess.Popen(
                ["nvidia-smi", question, "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
    smi = "ok" if asked else "none"
    end = time.monotonic() + SMI_S
    for name, child in asked.items():
        try:
            data, _ = child.communicate(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            # one that hangs in the kernel cannot even be killed: nobody waits for it
            child.kill()
            smi = "hangs"
            continue
        if child.returncode == 0:
            told[name] = data.decode("utf-8", "replace")
        else:
            smi = "fails"
    return told, smi


def start(asked: Told) -> Told:
    key, place = asked["key"], place_of(asked["key"])
    folder(ROOT)
    folder(place)
    with locked(os.path.join(place, "start.lock")) as alone:
        if os.path.exists(os.path.join(place, "started")):
            return settled(place)
        agent = os.path.join(ROOT, "agents", asked["sha256"] + ".pyz")
        if not is_whole(agent, asked["sha256"]):
            drop_empty(place)
            return {"need": "agent"}
        with locked(os.path.join(ROOT, "host.lock")):
            others = living(key)
            if others:
                drop_empty(place)
                return {"busy": "a session of yours runs there already (%s)" % others[0]}
            taken = unfit(asked)
            if taken:
                drop_empty(place)
                return {"busy": taken}
            if not claim(place, alone):
                return settled(place)
            launch(place, asked, agent)
    return settled(place)


def unfit(asked: Told) -> str:
    """Why the cards that were offered are not what can be had now; "" if they are."""
    if not asked["gpus"]:
        return ""
    told = cards(asked["idle_mb"])
    if told["smi"] in ("hangs", "fails"):
        return "nvidia-smi %s there now" % told["smi"]
    there = {card["index"]: card for card in told["cards"]}
    for index in asked["gpus"]:
        card = there.get(index)
        if card is None:
            return "card %s is not there any more" % index
        if card["used"]:
            return "somebody uses card %s there (%s)" % (index, card["used"])
    return ""


def is_whole(path: str, sha256: str) -> bool:
    """Whether the agent lies there as it was sent: nothing is synced, and a power cut leaves empty files."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return False
    return digest.hexdigest() == sha256


def claim(place: str, alone: bool) -> bool:
    """Whether this start is the one. mkdir is atomic everywhere; a claim whose owner died goes to who has the lock."""
    try:
        os.mkdir(os.path.join(place, "claim"))
    except FileExistsError:
        return alone
    return True


def settled(place: str) -> Told:
    """The answer for a key that was started, here or by somebody else, once its first process has noted itself."""
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end:
        if noted(place) is not None or os.path.exists(os.path.join(place, "failed")):
            break
        time.sleep(0.005)
    if not os.path.exists(os.path.join(place, "started")):
        return {"unsettled": True}
    return {"started": True}


def drop_empty(place: str) -> None:
    """A folder that no session was started in is not left behind."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(place, "start.lock"))
    with contextlib.suppress(OSError):
        os.rmdir(place)


def launch(place: str, asked: Told, agent: str) -> None:
    profile = dict(asked["profile"], work=os.path.join(place, "work"))
    write(os.path.join(place, "profile.json"), json.dumps(profile).encode())
    command = [sys.executable, "-I", agent, os.path.join(place, "profile.json")]
    if asked["secrets"]:
        # a private file that the agent deletes as it reads it: arguments and environments are seen by others
        path = os.path.join(place, "access.json")
        write(path, json.dumps({"secrets": asked["secrets"]}).encode())
        command.append("--access=" + path)
    env = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
    # The marker comes first: a crash right after it costs one session that never lived. The other way round, the
    # same key could be started again once the first session has ended.
    write(os.path.join(place, "started"), b"")
    with open(
        os.open(os.path.join(place, "agent.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        "ab",
    ) as log:
        try:
            subprocess.Popen(
                ["/bin/sh", "-c", RUN, "freegpu", place, BOOT, *command],
                cwd=place,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            os.unlink(os.path.join(place, "started"))
            raise


def find(asked: Told) -> Told:
    return {"found": os.path.exists(os.path.join(place_of(asked["key"]), "started"))}


def observe(asked: Told) -> Told:
    return {"seen": {key: look(key) for key in asked["keys"]}}


def look(key: str) -> Told:
    place = place_of(key)
    if not os.path.exists(os.path.join(place, "started")):
        return {"state": "gone"}
    if members(place):
        return {"state": "running"}
    known = noted(place)
    seen: Told = {"state": "ended"}
    if known is None:
        # by either sign: a home on another machine goes by that one's clock
        age = time.time() - os.stat(os.path.join(place, "started")).st_mtime
        if abs(age) < SETTLE_S:
            return {"state": "starting"}
        return dict(seen, why="cut short")
    seen["exit"] = read(os.path.join(place, "exit")).decode("ascii", "replace").strip()
    with contextlib.suppress(ValueError):
        seen["record"] = json.loads(read(os.path.join(place, "work", "exit.json")))
    if not seen["exit"]:
        seen["why"] = "killed" if known[2] == read(BOOT).strip() else "restarted"
    seen["tail"] = read(os.path.join(place, "agent.log"))[-400:].decode("utf-8", "replace")
    return seen


def stop(asked: Told) -> Told:
    place = place_of(asked["key"])
    alive, known = members(place), noted(place)
    if alive and known is not None:
        with contextlib.suppress(ProcessLookupError):
            # the group's number is its first process's, and cannot be another's while a member lives
            os.killpg(known[0], signal.SIGTERM)
    return {"asked": bool(alive)}


def logs(asked: Told) -> Told:
    data, path = b"", os.path.join(place_of(asked["key"]), "agent.log")
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(asked["at"])
        data = file.read(PAGE)
    if len(data) == PAGE and b"\n" in data:
        data = data[: data.rindex(b"\n") + 1]  # not in the middle of a character
    return {"text": data.decode("utf-8", "replace"), "at": asked["at"] + len(data)}


def tidy(asked: Told) -> Told:
    place = place_of(asked["key"])
    if members(place):
        return {"removed": False}
    shutil.rmtree(place, ignore_errors=True)
    if not living():
        agents = os.path.join(ROOT, "agents")
        for name in os.listdir(agents) if os.path.isdir(agents) else ():
            path = os.path.join(agents, name)
            with contextlib.suppress(OSError):
                if time.time() - os.stat(path).st_mtime > OLD_S:
                    os.unlink(path)
    return {"removed": True}


def receive(asked: Told) -> Told:
    """Keep what comes on stdin as an agent, if it is what it should be."""
    agents = folder(os.path.join(ROOT, "agents"))
    hidden = os.path.join(agents, ".%s.%d" % (asked["sha256"], os.getpid()))
    digest, left = hashlib.sha256(), asked["size"]
    try:
        with open(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            while left:
                block = sys.stdin.buffer.read(min(left, 1 << 18))
                if not block:
                    break
                left -= len(block)
                digest.update(block)
                file.write(block)
        if left or digest.hexdigest() != asked["sha256"]:
            return {"whole": False}
        os.replace(hidden, os.path.join(agents, asked["sha256"] + ".pyz"))
        return {"whole": True}
    finally:
        with contextlib.suppress(OSError):
            os.unlink(hidden)


def diagnose(asked: Told) -> Told:
    return {
        "python": "%d.%d.%d" % sys.version_info[:3],
        "executable": sys.executable,
        "root": ROOT,
        "writable": writable(),
        "lingers": lingers(),
        "store": reach(asked["store"]),
        **offers(asked),
    }


def writable() -> str:
    try:
        write(os.path.join(folder(ROOT), ".trial"), b"x")
        os.unlink(os.path.join(ROOT, ".trial"))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def lingers() -> bool:
    """False: this machine ends everything of a user who has signed out (systemd-logind, KillUserProcesses)."""
    kills = False
    names = ["/etc/systemd/logind.conf"]
    with contextlib.suppress(OSError):
        names += sorted(
            "/etc/systemd/logind.conf.d/" + n for n in os.listdir("/etc/systemd/logind.conf.d")
        )
    for name in names:
        for line in read(name).decode("utf-8", "replace").splitlines():
            word, _, value = line.partition("=")
            if word.strip() == "KillUserProcesses":
                kills = value.strip().lower() in ("yes", "true", "1", "on")
    if not kills or os.getuid() == 0:
        return True
    import pwd

    return os.path.exists("/var/lib/systemd/linger/" + pwd.getpwuid(os.getuid()).pw_name)


def reach(store: Told) -> str:
    """Really try the way to the store: "" if it is open."""
    if "folder" in store:
        path = store["folder"]
        if not os.path.isfile(os.path.join(path, "freegpu.json")):
            return "no store lies in %s there" % path
        return "" if os.access(path, os.W_OK) else "%s may not be written there" % path
    if "host" in store:
        host, port = store["host"], store["port"]
        proxy = urlsplit(getproxies().get(store["scheme"], ""))
        if proxy.hostname and not proxy_bypass(host):
            host, port = proxy.hostname, proxy.port or 80
        try:
            socket.create_connection((host, port), 10).close()
        except OSError as error:
            return "%s:%d does not answer from there (%s)" % (host, port, error)
    return ""


def main() -> None:
    mark = sys.argv[2]
    asked = json.loads(sys.stdin.buffer.readline())
    try:
        answer = (
            globals()[asked["do"]](asked)
            if LINUX
            else {"error": "it is no Linux: there is no /proc"}
        )
    except Exception as error:
        why = getattr(error, "strerror", None) or str(error)
        answer = {
            "error": why,
            "kind": type(error).__name__,
            "file": str(getattr(error, "filename", "") or ""),
        }
    answer["now"] = time.time()
    text = "\n%s%s%s\n" % (mark, json.dumps(answer), mark[::-1])
    with open(1, "wb", closefd=False) as out:
        out.write(text.encode())


if __name__ == "__main__":
    main()
