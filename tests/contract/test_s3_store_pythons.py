"""The store works on every Python that a session may have, with warnings as errors, against a real server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from freegpu.orchestrator import agent_archive
from tests.integration.test_agent_pythons import PYTHONS, interpreter
from tests.servers.s3 import SECRETS, S3Server

pytestmark = pytest.mark.slow

PROGRAM = """
import gc, hashlib, json, os, sys
sys.path.insert(0, sys.argv[1])
from freegpu.agent.stores import Access, open_store
from freegpu.agent.stores.base import ObjectMissing
store = open_store(sys.argv[2], Access({name: os.environ.pop(name) for name in sys.argv[4:]}))
folder = sys.argv[3]
data = os.urandom(1 << 16) * 1100
with open(folder + "/source", "wb") as file:
    file.write(data)
store.put("jobs/small", b"abc")
store.put("jobs/large", __import__("pathlib").Path(folder, "source"))
try:
    store.get("jobs/none")
except ObjectMissing:
    missing = True
told = {
    "new": [store.put_new("jobs/new", b"1"), store.put_new("jobs/new", b"2")],
    "small": store.get("jobs/small", 1, 3).decode(),
    "same": store.fetch("jobs/large", folder + "/back") == (len(data), hashlib.sha256(data).hexdigest()),
    "stat": store.stat("jobs/small", digest=True).sha256,
    "list": store.list("jobs"),
    "missing": missing,
    "swept": store.sweep(0),
}
store.delete("jobs/large")
del store
gc.collect()  # a connection that nobody closes would warn here
print(json.dumps(told))
"""


@pytest.mark.parametrize("version", PYTHONS)
def test_put_and_get_work_on_this_python(
    moto_server: S3Server, tmp_path: Path, version: str
) -> None:
    """From the archive that is shipped: small and large, conditions, listing, digests, what is missing."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    bucket = "python-" + version.replace(".", "-")
    moto_server.client().create_bucket(Bucket=bucket)
    archive, _ = agent_archive.build(tmp_path / "archive")
    done = subprocess.run(
        [
            python,
            "-W",
            "error",
            "-I",
            "-c",
            PROGRAM,
            str(archive),
            moto_server.url(bucket),
            str(tmp_path),
            *SECRETS,
        ],
        env={**SECRETS, "NO_PROXY": "127.0.0.1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "new": [True, False],
        "small": "bc",
        "same": True,
        "stat": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "list": ["jobs/large", "jobs/new", "jobs/small"],
        "missing": True,
        "swept": 0,
    }
