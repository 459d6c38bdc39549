"""A job from `submit` to `pull` with everything in a bucket: the command line, the agent, the probe."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import User
from tests.servers.s3 import SECRETS, S3Server

pytestmark = pytest.mark.slow

TRAIN = """
import os, pathlib, time
out = pathlib.Path(os.environ["FREEGPU_OUTPUT_DIR"])
(pathlib.Path(os.environ["FREEGPU_CHECKPOINT_DIR"]) / "state.bin").write_bytes(bytes(range(256)) * 20_000)
time.sleep(3)
(out / "result.bin").write_bytes(bytes(range(255, -1, -1)) * 300_000)
"""
JOB = """
name: in-a-bucket
workdir: .
run: python3 train.py
resources: {accelerators: CPU}
freegpu:
  checkpoint: {path: ckpt, every: 2s}
  outputs: ["result.bin"]
"""


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    made = User(tmp_path)
    made.env.update(SECRETS)
    try:
        yield made
    finally:
        made.leave()


def test_a_job_runs_and_comes_home_by_a_bucket(seaweed_server: S3Server, user: User) -> None:
    """`connect store` measures it, the agent saves into it, the result is whole; no key lies in it or at home."""
    seaweed_server.client().create_bucket(Bucket="whole-job")
    user.ok("init")
    measured = user.ok("--json", "connect", "store", seaweed_server.url("whole-job")).json
    assert measured["data"]["measured"]["cas"] is True
    assert measured["data"]["measured"]["server_digest"] is True
    (user.desk / "train.py").write_text(TRAIN)
    user.ok("submit", user.job_file(JOB), "--wait", timeout=150)
    user.ok("pull", "in-a-bucket", "home")
    wanted = hashlib.sha256(bytes(range(255, -1, -1)) * 300_000).hexdigest()
    (result,) = (user.desk / "home").rglob("result.bin")
    assert hashlib.sha256(result.read_bytes()).hexdigest() == wanted
    client = seaweed_server.client()
    names = [found["Key"] for found in client.list_objects_v2(Bucket="whole-job")["Contents"]]
    assert any("/checkpoints/" in name for name in names)
    assert all(name.startswith("home/store/") for name in names)
    stored = [client.get_object(Bucket="whole-job", Key=name)["Body"].read() for name in names]
    kept = [path.read_bytes() for path in user.home.rglob("*") if path.is_file()]
    for secret in SECRETS.values():
        assert not any(secret.encode() in data for data in (*stored, *kept))
