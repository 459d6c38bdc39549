"""Real S3 servers on the loopback: SeaweedFS, moto and rclone's. Session fixtures; see tests/contract/conftest.py.

SeaweedFS keeps conditions and computes digests; moto keeps conditions and no checksum; rclone accepts everything
and keeps neither. Each is started with the given folder as its disk and ended with the block.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers.present import absent

KEY, SECRET = "testkey0123456789", "testsecret0123456789+/="
#: knows SeaweedFS's buckets but may only read them
READER_KEY, READER_SECRET = "readkey0123456789", "readsecret0123456789"
SECRETS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
_PROGRAMS = Path(sys.executable).parent


@dataclass(frozen=True)
class S3Server:
    """A server that runs; `disk` is its folder where it has one (rclone: a subfolder is a bucket)."""

    port: int
    disk: Path

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, bucket: str, prefix: str = "home/store") -> str:
        """The store's URL at this server."""
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region=us-east-1"

    def client(self) -> Any:
        """boto3's client of it, to look from outside and to prepare."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, proxies={}),
        )


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _program(name: str) -> str:
    path = _PROGRAMS / name
    if not path.exists():
        absent(f"{name} is not installed beside this Python")
    return str(path)


@contextmanager
def _running(argv: Sequence[str], folder: Path, ready: Callable[[], bool]) -> Iterator[None]:
    """The program until the block ends. Fails with the end of its log if it does not come up."""
    log = folder / "server.log"
    with open(log, "wb") as out, ExitStack() as stack:
        # SeaweedFS would grow seven volumes a bucket
        environ = {**os.environ, "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
        process = subprocess.Popen(
            argv, cwd=folder, env=environ, stdout=out, stderr=subprocess.STDOUT
        )
        stack.callback(process.wait, 20)
        stack.callback(process.kill)
        end = time.monotonic() + 60
        while not ready():
            if process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"{argv[0]} does not come up:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(1)
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _answers(server: S3Server) -> bool:
    """Whether it can make a bucket; SeaweedFS listens long before its parts know each other."""
    from botocore.exceptions import BotoCoreError, ClientError

    if not _listens(server.port):
        return False
    try:
        server.client().create_bucket(Bucket="is-it-up")
    except (BotoCoreError, ClientError):
        return False
    return True


@contextmanager
def seaweed_server(folder: Path) -> Iterator[S3Server]:
    """SeaweedFS with all its parts, which tell nobody about it."""
    (folder / "disk").mkdir()
    everything = ["Admin", "Read", "Write", "List", "Tagging"]
    identities = [
        {
            "name": name,
            "credentials": [{"accessKey": key, "secretKey": secret}],
            "actions": actions,
        }
        for name, key, secret, actions in (
            ("freegpu", KEY, SECRET, everything),
            ("reader", READER_KEY, READER_SECRET, ["Read", "List"]),
        )
    ]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    parts = ("master", "volume", "filer", "s3")
    ports = {name: free_port() for part in parts for name in (f"{part}.port", f"{part}.port.grpc")}
    argv = [
        _program("weed"),
        "server",
        "-dir=disk",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-s3",
        "-s3.config=s3.json",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-iam=false",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=1024",
        "-volume.max=1000",
        f"-filer.localSocket={folder / 'filer.sock'}",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    server = S3Server(ports["s3.port"], folder / "disk")
    try:
        with _running(argv, folder, lambda: _answers(server)):
            yield server
    finally:
        for port in ports.values():  # it puts them there, whatever TMPDIR says
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink()


@contextmanager
def moto_server(folder: Path) -> Iterator[S3Server]:
    """moto's server, which keeps everything in its memory and takes any key."""
    server = S3Server(free_port(), folder)
    argv = [_program("moto_server"), "-H", "127.0.0.1", "-p", str(server.port)]
    with _running(argv, folder, lambda: _answers(server)):
        yield server


@contextmanager
def rclone_s3_server(folder: Path) -> Iterator[S3Server]:
    """`rclone serve s3` over a folder."""
    server = S3Server(free_port(), folder / "disk")
    server.disk.mkdir()
    argv = [
        _program("rclone"),
        "serve",
        "s3",
        str(server.disk),
        "--addr",
        f"127.0.0.1:{server.port}",
        "--auth-key",
        f"{KEY},{SECRET}",
        "--config",
        str(folder / "rclone.conf"),
    ]
    with _running(argv, folder, lambda: _answers(server)):
        yield server


def _fixture(start: Callable[[Path], Any]) -> Callable[..., Iterator[S3Server]]:
    @pytest.fixture(scope="session", name=start.__name__)
    def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
        with start(tmp_path_factory.mktemp(start.__name__)) as server:
            yield server

    return running


#: to be imported by a conftest.py; use them by the names of the functions above
seaweed_fixture = _fixture(seaweed_server)
moto_fixture = _fixture(moto_server)
rclone_s3_fixture = _fixture(rclone_s3_server)
