"""The way in for programs that know only Google's addresses: a proxy to two hosts, and certificates for them.

The certificates come from an authority that is made anew in the server's folder and trusted by nobody else. Every
other host is refused and remembered: whoever tests behind this proxy sees whom a program wanted to talk to.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from freegpu.adapters.hosts import write_private

__all__ = ["HOSTS", "Gate", "certificates", "tls_context"]

#: the hosts that are behind the proxy, all on port 443
HOSTS = ("colab.research.google.com", "oauth2.googleapis.com")


def certificates(folder: Path) -> Path:
    """Make an authority and a certificate for HOSTS; returns the authority's file, for REQUESTS_CA_BUNDLE."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)
    span = (now - datetime.timedelta(days=1), now + datetime.timedelta(days=30))

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def make(subject: str, key: Any, issuer: str) -> x509.CertificateBuilder:
        begun = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named(issuer))
        begun = begun.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return begun.not_valid_before(span[0]).not_valid_after(span[1])

    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    identity = x509.SubjectKeyIdentifier.from_public_key(root_key.public_key())
    root = (
        make("freegpu loopback authority", root_key, "freegpu loopback authority")
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identity, critical=False)
        .sign(root_key, hashes.SHA256())
    )
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in HOSTS]
    names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    leaf = (
        make(HOSTS[0], key, "freegpu loopback authority")
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()),
            critical=False,
        )
        .sign(root_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(folder / "ca.pem", root.public_bytes(pem))
    write_private(folder / "front.pem", plain + leaf.public_bytes(pem))
    return folder / "ca.pem"


def tls_context(folder: Path) -> ssl.SSLContext:
    """The server's side of the certificates that `certificates` made."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "front.pem")
    return context


class Gate:
    """The proxy; `refused` hears of every host that was asked for and is not one of HOSTS."""

    def __init__(self, front: int, refused: Callable[[str], None]) -> None:
        self.front = front
        self.refused = refused
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Connect)
        self._http.daemon_threads = True
        self._http.block_on_close = False
        self._http.gate = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)


class _Connect(BaseHTTPRequestHandler):
    """CONNECT to the two hosts; everything else is refused."""

    protocol_version = "HTTP/1.1"

    def do_CONNECT(self) -> None:
        gate: Gate = self.server.gate  # type: ignore[attr-defined]
        self.close_connection = True
        if self.path not in {f"{host}:443" for host in HOSTS}:
            self._refuse()
            return
        with socket.create_connection(("127.0.0.1", gate.front)) as behind:
            self.send_response_only(200)
            self.end_headers()
            self.wfile.flush()
            back = threading.Thread(target=_pump, args=(behind, self.connection), daemon=True)
            back.start()
            _pump(self.connection, behind)
            back.join(30)

    def _refuse(self) -> None:
        gate: Gate = self.server.gate  # type: ignore[attr-defined]
        gate.refused(f"{self.command} {self.path}")
        self.close_connection = True
        self.send_response_only(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _refuse  # noqa: N815 - the names that http.server asks for

    def log_message(self, *_: object) -> None:
        """Silent."""


def _pump(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)
