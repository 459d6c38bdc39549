"""Colab's session backend as the `colab` program knows it: assign, unassign, assignments, ccu-info.

What an account has is read from FOLDER/account.json (ACCOUNT, overridden in part), so that any process may change it.
There is no keep-alive address: whoever asks for one is told 404, and the record shows it.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

from freegpu import cards
from freegpu.adapters.hosts import write_private
from freegpu.testing.colab_server.gate import Gate, certificates, tls_context
from freegpu.testing.machines import Hardware
from freegpu.testing.platform_server import Heard, PlatformServer, Reply

__all__ = ["ACCOUNT", "ColabServer"]

XSSI = ")]}'\n"
#: an account without a paid balance. `refuse`: {"status": s, "outcome": o} for every assignment; `late_s`: seconds that
#: one takes, also when nobody waits for it any more
ACCOUNT: Mapping[str, Any] = MappingProxyType(
    {
        "balance": 0,
        "free_milli": 12_000,
        "refill_s": 3600,
        "rate": 1.5,
        "eligible": ["T4"],
        "ineligible": ["L4", "A100"],
        "most": 1,
        "refuse": None,
        "late_s": 0,
    }
)
#: what the driver says of the accelerators that Colab names
_DRIVER: Mapping[str, Hardware] = MappingProxyType(
    {
        "T4": Hardware(name="Tesla T4", memory_mb=15360, capability="7.5"),
        "L4": Hardware(name="NVIDIA L4", memory_mb=23034, capability="8.9"),
        "A100": Hardware(name="NVIDIA A100-SXM4-40GB", memory_mb=40960, capability="8.0"),
        "H100": Hardware(name="NVIDIA H100 80GB HBM3", memory_mb=81559, capability="9.0"),
    }
)
_VARIANTS: Mapping[str, int] = MappingProxyType({"DEFAULT": 0, "GPU": 1, "TPU": 2})
#: the colab program makes /content in its kernel and goes there; here that is a folder of the machine
_STARTUP = """
import os
def _here(function):
    def call(path, *rest, **more):
        return function({content!r} if path == "/content" else path, *rest, **more)
    return call

os.makedirs, os.chdir = _here(os.makedirs), _here(os.chdir)
"""


class ColabServer(PlatformServer):
    """A loopback Colab; FOLDER/env.json says how programs reach it, and FOLDER/token.json is a sign-in for it."""

    starts: ClassVar[frozenset[str]] = frozenset({"assign"})
    unlocked: ClassVar[frozenset[str]] = frozenset({"assign", "unassign", "release"})

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        super().__init__(folder, port=port)
        #: hosts that a program behind the proxy asked for and did not get
        self.refused: list[str] = []
        #: what is accepted as a bearer token, and what buys a new one
        self.tokens = {f"ya29.loopback-{secrets.token_hex(8)}"}
        self.refresh_token = f"1//loopback-{secrets.token_hex(8)}"
        self._vms: dict[str, dict[str, Any]] = {}
        certificates(folder)
        handler: Any = self._http.RequestHandlerClass
        self._front = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._front.daemon_threads = True
        self._front.block_on_close = False
        self._front.platform = self  # type: ignore[attr-defined]
        # the handshake is left to the connection's own thread: a client that is silent holds nobody else up
        self._front.socket = tls_context(folder).wrap_socket(
            self._front.socket, server_side=True, do_handshake_on_connect=False
        )
        self.gate = Gate(self._front.server_address[1], self.refused.append)
        self._fronting = threading.Thread(
            target=self._front.serve_forever, args=(0.05,), daemon=True
        )
        self.env = {
            "HTTPS_PROXY": self.gate.url,
            "https_proxy": self.gate.url,
            "NO_PROXY": "127.0.0.1,localhost,::1",
            "no_proxy": "127.0.0.1,localhost,::1",
            "REQUESTS_CA_BUNDLE": str(folder / "ca.pem"),
        }
        write_private(folder / "env.json", json.dumps(self.env).encode())
        self.sign_in(folder / "token.json")

    def __enter__(self) -> Self:
        super().__enter__()
        self._fronting.start()
        self.gate.open()
        return self

    def __exit__(self, *cause: object) -> None:
        self.gate.close()
        self._front.shutdown()
        self._front.server_close()
        super().__exit__(*cause)

    # --- the account ------------------------------------------------------------------------------------

    def sign_in(self, path: Path, *, valid_s: float = 3600.0, refresh: str | None = None) -> None:
        """Write the file that the colab program keeps after a sign-in; its access token ends in `valid_s` seconds."""
        ends = datetime.now(UTC) + timedelta(seconds=valid_s)
        told = {
            "token": next(iter(self.tokens)),
            "refresh_token": self.refresh_token if refresh is None else refresh,
            "token_uri": "https://oauth2.googleapis.com/token",
            "client_id": "loopback",
            "client_secret": "loopback",
            "scopes": ["https://www.googleapis.com/auth/colaboratory"],
            "universe_domain": "googleapis.com",
            "account": "",
            "expiry": ends.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, json.dumps(told).encode())

    def set_account(self, **told: Any) -> None:
        """Change what the account has; see ACCOUNT."""
        write_private(self.folder / "account.json", json.dumps({**self.account(), **told}).encode())

    def account(self) -> dict[str, Any]:
        """What the account has now."""
        try:
            told = json.loads((self.folder / "account.json").read_bytes())
        except (OSError, ValueError):
            told = {}
        return {**ACCOUNT, **told}

    def endpoints(self) -> list[str]:
        """The runtimes that are assigned now."""
        with self.lock:
            gone = [name for name in self._vms if not self.machines.alive(name)]
            if not self.fault("lies_running"):
                for name in gone:
                    del self._vms[name]
            return sorted(self._vms)

    def lose(self) -> int:
        """Take every runtime away without notice; how many there were."""
        with self.lock:
            names = [name for name in self._vms if self.machines.alive(name)]
        for name in names:
            self.machines.kill(name)
        return len(names)

    # --- requests ---------------------------------------------------------------------------------------

    def operation(self, heard: Heard) -> str:
        if heard.headers.get("host", "").startswith("oauth2."):
            return "token" if heard.path == "/token" else ""
        parts = heard.path.strip("/").split("/")
        match heard.method, parts:
            case ("GET", ["tun", "m", "assign"]):
                return "prepare"
            case ("POST", ["tun", "m", "assign"]):
                return "assign"
            case ("GET", ["tun", "m", "unassign", _]):
                return "prepare-unassign"
            case ("POST", ["tun", "m", "unassign", _]):
                return "unassign"
            case ("GET", ["tun", "m", "assignments"]):
                return "list"
            case ("GET", ["tun", "m", "ccu-info"]):
                return "ccu-info"
            case ("POST", ["vm", _, "unassign"]):
                return "release"
            case ("GET", ["tun", "m", _, "keep-alive"]):
                return "keep-alive"
        return ""

    def answer(self, heard: Heard) -> Reply:
        name = heard.operation
        if name == "token":
            return self._token(heard)
        if name == "release":
            return self._unassign(heard.path.split("/")[2])
        bearer = heard.headers.get("authorization", "").removeprefix("Bearer ")
        if bearer not in self.tokens:
            return self.error(401, "Request had invalid authentication credentials.")
        match name:
            case "ccu-info":
                return _json(self._ccu())
            case "list":
                return _json({"assignments": [self._listed(name) for name in self.endpoints()]})
            case "prepare":
                return self._prepare(heard)
            case "assign":
                return self._assign(heard)
            case "prepare-unassign":
                return _json({"token": self._xsrf(heard.path.rsplit("/", 1)[1])})
            case "unassign":
                endpoint = heard.path.rsplit("/", 1)[1]
                if heard.headers.get("x-goog-colab-token") != self._xsrf(endpoint):
                    return self.error(403, "xsrf")
                return self._unassign(endpoint)
        return self.error(404, "Not Found")

    def _token(self, heard: Heard) -> Reply:
        if f"refresh_token={self.refresh_token}".replace("/", "%2F") not in heard.body.decode():
            return Reply(status=400, json={"error": "invalid_grant"})
        fresh = f"ya29.loopback-{secrets.token_hex(8)}"
        self.tokens.add(fresh)
        return Reply(json={"access_token": fresh, "expires_in": 3599, "token_type": "Bearer"})

    def _ccu(self) -> dict[str, Any]:
        has, running = self.account(), len(self.endpoints())
        told = {
            "currentBalance": has["balance"],
            "consumptionRateHourly": has["rate"] * running,
            "assignmentsCount": running,
            "eligibleGpus": has["eligible"],
            "ineligibleGpus": has["ineligible"],
            "eligibleTpus": [],
        }
        if not has["balance"] and has["free_milli"] is not None:
            refill = int(self.now() + has["refill_s"])
            told["freeCcuQuotaInfo"] = {
                "remainingTokens": str(has["free_milli"]),
                # both spellings were seen
                "nextRefillTimestampSec": str(refill) if has.get("refill_text") else refill,
            }
        return told

    def _xsrf(self, what: str) -> str:
        return f"xsrf-{what}"

    def _prepare(self, heard: Heard) -> Reply:
        nbh = heard.query.get("nbh", "")
        with self.lock:
            for name in self.endpoints():
                if self._vms[name]["nbh"] == nbh:
                    return _json({**self._listed(name), "variant": "GPU"})
        return _json(
            {
                "acc": heard.query.get("accelerator", "NONE"),
                "nbh": nbh,
                "p": False,
                "token": self._xsrf(nbh),
                "variant": heard.query.get("variant", "DEFAULT"),
            }
        )

    def _assign(self, heard: Heard) -> Reply:
        nbh, wanted = heard.query.get("nbh", ""), heard.query.get("accelerator", "NONE")
        if heard.headers.get("x-goog-colab-token") != self._xsrf(nbh):
            return self.error(403, "xsrf")
        has = self.account()
        if self.fault("refuse_quota", "assign"):
            return _refusal(503, 2)
        if self.fault("refuse_sessions", "assign") or len(self.endpoints()) >= has["most"]:
            return Reply(status=412, body=b"Precondition Failed")
        if self.fault("refuse_capacity", "assign"):
            return Reply(status=503, body=b"<html>Service Unavailable</html>")
        if has["refuse"]:
            return _refusal(int(has["refuse"]["status"]), has["refuse"].get("outcome"))
        if wanted not in (*has["eligible"], "NONE"):
            return Reply(status=400, body=b"<html>Bad Request</html>")
        time.sleep(float(has["late_s"]))
        came = str(self.fault("wrong_card", "assign") or wanted)
        known = cards.find(came)
        accelerator = known.name if known is not None and known.name in _DRIVER else came
        endpoint = f"gpu-{came.lower().replace(' ', '-')[:12]}-{secrets.token_hex(6)}"
        port = _free_port()
        with self.lock:
            vm = {
                "nbh": nbh,
                "accelerator": accelerator,
                "variant": _VARIANTS.get(heard.query.get("variant", "DEFAULT"), 0),
                "port": port,
            }
            self._boot(endpoint, vm, came)
            self._vms[endpoint] = vm
        self._until_up(endpoint, port)
        listed = self._listed(endpoint)
        return _json({**listed, "fit": 5400, "sub": 0, "subTier": 0, "outcome": 0})

    def _listed(self, endpoint: str) -> dict[str, Any]:
        vm = self._vms[endpoint]
        return {
            "accelerator": self.fault("unknown_word", "list") or vm["accelerator"],
            "endpoint": endpoint,
            "variant": vm["variant"],
            "machineShape": 0,
            "runtimeProxyInfo": {
                "token": f"proxy-{secrets.token_hex(8)}",
                "tokenExpiresInSeconds": 3600,
                "url": f"http://127.0.0.1:{vm['port']}",
            },
        }

    def _unassign(self, endpoint: str) -> Reply:
        with self.lock:
            known = self._vms.pop(endpoint, None)
        if known is None:
            return self.error(404, "Not Found")
        self.machines.kill(endpoint)
        return Reply(status=204)

    # --- runtimes ---------------------------------------------------------------------------------------

    def _boot(self, endpoint: str, vm: Mapping[str, Any], card: str) -> None:
        place = self.machines.place(endpoint)
        home = place / "home"
        hardware = _DRIVER.get(vm["accelerator"]) or (
            None if vm["accelerator"] == "NONE" else Hardware(name=card)
        )
        words = ["python3", "-m", "jupyter_server"]
        settings = {
            "ip": "127.0.0.1",
            "port": vm["port"],
            "port_retries": 0,
            "root_dir": str(place),
            "allow_root": True,
            "disable_check_xsrf": True,
            "open_browser": False,
        }
        words += [f"--ServerApp.{name}={value}" for name, value in settings.items()]
        words += ["--IdentityProvider.token="]
        self.machines.start(
            endpoint,
            words,
            files={
                "content/.keep": b"",
                "site/sitecustomize.py": _STARTUP.format(content=str(place / "content")).encode(),
            },
            cards=hardware,
            env={
                "TBE_RUNTIME_ADDR": f"{self.url.removeprefix('http://')}/vm/{endpoint}",
                "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
                "PYTHONPATH": str(place / "site"),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )

    def _until_up(self, endpoint: str, port: int) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and self.machines.alive(endpoint):
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.05)


def _json(told: Any) -> Reply:
    body = (XSSI + json.dumps(told)).encode()
    return Reply(body=body, headers={"Content-Type": "application/json"})


def _refusal(status: int, outcome: int | None) -> Reply:
    """A refusal as it was captured once: every field there, all of them empty but the outcome."""
    told: dict[str, Any] = {"accelerator": "", "endpoint": "", "machineShape": 0, "sub": 0}
    told |= {"subTier": 0, "variant": 0}
    if outcome is not None:
        told["outcome"] = outcome
    reply = _json(told)
    reply.status = status
    return reply


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
