"""One request to the Drive: which operation it is, its body, its answer, and the fault that was switched for it.

The operations: files.list, files.get, files.download, files.create, files.update, files.delete, files.generateIds,
changes.getStartPageToken, changes.list, about.get, upload.start, upload.chunk, upload.ask, token, auth.
"""

from __future__ import annotations

import contextlib
import email.parser
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from freegpu.testing.drive_server.fields import select
from freegpu.testing.drive_server.model import ROOT, File, Refusal, Who

if TYPE_CHECKING:
    from freegpu.testing.drive_server.server import DriveServer, Fault

#: chunks of a resumable upload are multiples of this, the last one excepted
CHUNK = 256 << 10
_BLOCK = 1 << 20
_PATH = re.compile(r"(?:/resumable)?(/upload)?/drive/v3/(files|changes|about)(?:/([^/?]+))?$")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)$")


@dataclass
class Upload:
    """A resumable upload that has begun."""

    metadata: dict[str, Any]
    file_id: str
    who: Who
    params: dict[str, str]
    path: Path
    received: int = 0
    done: str = ""


class _Cut(Exception):  # noqa: N818
    """The connection ends here."""


class Exchange(BaseHTTPRequestHandler):
    """See the module."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version = "freegpu-drive"

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the names that http.server asks for

    def log_message(self, *_: object) -> None:
        """Silent: `requests` tells it."""

    @property
    def mine(self) -> DriveServer:
        server: DriveServer = self.server.drive_server  # type: ignore[attr-defined]
        return server

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        self.params = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.left = int(self.headers.get("Content-Length") or 0)
        operation, run = self._operation(unquote(parts.path))
        self.fault = self.mine.take_fault(operation)
        try:
            try:
                self._go(operation, run)
            except Refusal as refusal:
                self._drain()
                self._refuse(refusal, oauth=operation == "token")
        except (_Cut, ConnectionError, TimeoutError):
            self.close_connection = True

    def _go(self, operation: str, run: Callable[[Who], None]) -> None:
        fault = self.fault
        if fault and fault.cut_after is None and not fault.accepted:
            self._fail(fault)
        who = Who("", "") if operation in ("token", "auth") else self._who()
        if fault and fault.accepted:
            # carried out, and the answer is another one
            self.answer = lambda *_, **__: None  # type: ignore[method-assign]
            try:
                with contextlib.suppress(Refusal):
                    run(who)
            finally:
                del self.answer
            self._fail(fault)
        run(who)

    def _who(self) -> Who:
        with self.mine.lock:
            return self.mine.oauth.who(self.headers.get("Authorization") or "")

    def _fail(self, fault: Fault) -> None:
        self._drain()
        if not fault.status:
            raise _Cut
        refusal = Refusal(fault.status, fault.reason)
        refusal.retry_after = fault.retry_after_s
        raise refusal

    def _operation(self, path: str) -> tuple[str, Callable[[Who], None]]:
        if path == "/token" and self.command == "POST":
            return "token", self._token
        if path == "/o/oauth2/auth" and self.command == "GET":
            return "auth", self._auth
        match = _PATH.match(path)
        if match is None:
            return "unknown", self._unknown
        upload, kind, name = match[1], match[2], match[3] or ""
        if upload and "upload_id" in self.params:
            asks = (self.headers.get("Content-Range") or "").startswith(
                "bytes */"
            ) and not self.left
            return ("upload.ask" if asks else "upload.chunk"), self._chunk
        if upload and self.params.get("uploadType") == "resumable":
            return "upload.start", lambda who: self._start_upload(who, name)
        known: Mapping[tuple[str, str, bool], tuple[str, Callable[[Who], None]]] = {
            ("GET", "files", False): ("files.list", self._list),
            ("POST", "files", False): ("files.create", lambda who: self._write(who, "")),
            ("PATCH", "files", True): ("files.update", lambda who: self._write(who, name)),
            ("DELETE", "files", True): ("files.delete", lambda who: self._delete(who, name)),
            ("GET", "changes", False): ("changes.list", self._changes),
            ("GET", "about", False): ("about.get", lambda who: self._say(self.mine.about(), "*")),
        }
        if self.command == "GET" and (kind, name) == ("files", "generateIds"):
            return "files.generateIds", self._ids
        if self.command == "GET" and (kind, name) == ("changes", "startPageToken"):
            return "changes.getStartPageToken", self._start_token
        if self.command == "GET" and kind == "files" and name:
            media = self.params.get("alt") == "media"
            return ("files.download" if media else "files.get"), lambda who: self._get(who, name)
        return known.get((self.command, kind, bool(name)), ("unknown", self._unknown))

    def _unknown(self, who: Who) -> None:
        raise Refusal(
            404, "notFound", f"{self.command} {urlsplit(self.path).path} is not served here"
        )

    # --- answers ----------------------------------------------------------------------------------------

    def answer(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _say(self, data: Mapping[str, Any], default: str, status: int = 200) -> None:
        shown = select(data, self.params.get("fields") or default)
        self.answer(
            status, {"Content-Type": "application/json; charset=UTF-8"}, json.dumps(shown).encode()
        )

    def _say_file(self, file: File, who: Who) -> None:
        self._say(self.mine.drive.resource(file, who), "kind,id,name,mimeType")

    def _refuse(self, refusal: Refusal, *, oauth: bool) -> None:
        error: dict[str, Any] = {
            "code": refusal.status,
            "message": str(refusal),
            "errors": [{"domain": "global", "reason": refusal.reason, "message": str(refusal)}],
        }
        shown = (
            {"error": refusal.reason, "error_description": str(refusal)}
            if oauth
            else {"error": error}
        )
        headers = {"Content-Type": "application/json; charset=UTF-8"}
        if refusal.retry_after is not None:
            headers["Retry-After"] = f"{refusal.retry_after:g}"
        self.answer(refusal.status, headers, json.dumps(shown).encode())

    # --- bodies -----------------------------------------------------------------------------------------

    def _body(self) -> Iterable[bytes]:
        cut = self.fault.cut_after if self.fault else None
        while self.left:
            most = min(self.left, _BLOCK) if cut is None else min(self.left, _BLOCK, cut)
            block = self.rfile.read(most) if most else b""
            if not block:
                raise _Cut
            self.left -= len(block)
            if cut is not None:
                cut -= len(block)
            yield block

    def _drain(self) -> None:
        while self.left:
            block = self.rfile.read(min(self.left, _BLOCK))
            if not block:
                return
            self.left -= len(block)

    def _form(self) -> dict[str, str]:
        return dict(parse_qsl(b"".join(self._body()).decode(), keep_blank_values=True))

    def _json(self, data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data or b"{}")
        except ValueError as error:
            raise Refusal(400, "parseError", "Parse Error") from error
        return found if isinstance(found, dict) else {}

    def _parts(self) -> tuple[dict[str, Any], Path | None]:
        """Metadata and content of a create or update in one request."""
        kind = self.params.get("uploadType")
        data = b"".join(self._body())
        if kind is None:
            return self._json(data), None
        content = self.mine.new_path()
        if kind == "media":
            content.write_bytes(data)
            return {"mimeType": self.headers.get("Content-Type")}, content
        boundary = re.search(r'boundary="?([^";]+)"?', self.headers.get("Content-Type") or "")
        pieces = data.split(b"--" + boundary[1].encode()) if boundary else []
        if len(pieces) < 4:
            raise Refusal(400, "badContent", "Malformed multipart body.")
        (_, described), (head, media) = (_split(piece) for piece in pieces[1:3])
        # a boundary inside the content would have cut it: the client must choose another one
        if len(pieces) > 4:
            raise Refusal(400, "badContent", "Malformed multipart body.")
        content.write_bytes(media)
        return {"mimeType": head.get("Content-Type")} | self._json(described), content

    # --- operations -------------------------------------------------------------------------------------

    def _list(self, who: Who) -> None:
        with self.mine.lock:
            answer = self.mine.list_files(self.params, who)
        self._say(answer, "kind,incompleteSearch,nextPageToken,files(kind,id,name,mimeType)")

    def _changes(self, who: Who) -> None:
        with self.mine.lock:
            answer = self.mine.list_changes(self.params, who)
        self._say(
            answer,
            "kind,nextPageToken,newStartPageToken,changes(kind,changeType,removed,fileId,file(kind,id,name,mimeType))",
        )

    def _start_token(self, who: Who) -> None:
        with self.mine.lock:
            token = self.mine.start_token()
        self._say({"kind": "drive#startPageToken", "startPageToken": token}, "*")

    def _ids(self, who: Who) -> None:
        count = int(self.params.get("count", "10"))
        with self.mine.lock:
            ids = self.mine.drive.new_ids(count)
        self._say({"kind": "drive#generatedIds", "space": "drive", "ids": ids}, "*")

    def _write(self, who: Who, name: str) -> None:
        metadata, content = self._parts()
        try:
            with self.mine.lock:
                file = self._store(who, name, metadata, content, self.params)
                self._say_file(file, who)
        finally:
            if content:
                content.unlink(missing_ok=True)

    def _store(
        self,
        who: Who,
        name: str,
        metadata: dict[str, Any],
        content: Path | None,
        params: Mapping[str, str],
    ) -> File:
        drive = self.mine.drive
        if not name:
            return drive.create(metadata, content, who)
        places = {"add": params.get("addParents", ""), "remove": params.get("removeParents", "")}
        return drive.update(drive.find(name, who), metadata, content, who, **places)

    def _delete(self, who: Who, name: str) -> None:
        with self.mine.lock:
            self.mine.drive.delete(self.mine.drive.find(name, who))
        self.answer(204, {})

    def _get(self, who: Who, name: str) -> None:
        with self.mine.lock:
            file = self.mine.drive.find(ROOT if name == "root" else name, who)
            if self.params.get("alt") != "media":
                self._say_file(file, who)
                return
            if not file.revision:
                raise Refusal(
                    403, "fileNotDownloadable", "Only files with binary content can be downloaded."
                )
            data = self.mine.drive.content(file).open("rb")
        with data:
            wanted = _RANGE.match(self.headers.get("Range") or "")
            start, end = 0, file.size
            headers = {"Content-Type": file.mime}
            if wanted:
                start, end = (
                    int(wanted[1]),
                    min(int(wanted[2]) + 1 if wanted[2] else file.size, file.size),
                )
                if start >= file.size:
                    self.answer(416, {"Content-Range": f"bytes */{file.size}"})
                    return
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
            self.send_response(206 if wanted else 200)
            for key, value in (headers | {"Content-Length": str(end - start)}).items():
                self.send_header(key, value)
            self.end_headers()
            cut = self.fault.cut_after if self.fault else None
            data.seek(start)
            left = end - start
            while left:
                if cut is not None and end - start - left >= cut:
                    raise _Cut
                most = min(left, _BLOCK) if cut is None else min(left, _BLOCK, cut)
                block = data.read(most)
                self.wfile.write(block)
                left -= len(block)

    # --- resumable uploads ------------------------------------------------------------------------------

    def _start_upload(self, who: Who, name: str) -> None:
        metadata = self._json(b"".join(self._body()))
        mime = self.headers.get("X-Upload-Content-Type")
        if not name and mime:
            metadata = {"mimeType": mime} | metadata
        with self.mine.lock:
            if name:
                self.mine.drive.find(name, who)
            else:
                self.mine.drive.check_new(metadata, who)
            upload_id = secrets.token_urlsafe(16)
            path = self.mine.new_path()
            path.touch()
            self.mine.uploads[upload_id] = Upload(metadata, name, who, dict(self.params), path)
        where = f"{self.mine.url}/upload/drive/v3/files?uploadType=resumable&upload_id={upload_id}"
        if "fields" in self.params:
            where += f"&fields={quote(self.params['fields'])}"
        self.answer(200, {"Location": where})

    def _chunk(self, who: Who) -> None:
        with self.mine.lock:
            upload = self.mine.uploads.get(self.params["upload_id"])
            if upload is None or upload.who != who:
                raise Refusal(404, "notFound", "The upload session is not there or has expired.")
        if upload.done:
            self._drain()
            with self.mine.lock:
                self._say_file(self.mine.drive.find(upload.done, who), who)
            return
        text = self.headers.get("Content-Range")
        wanted = _CONTENT_RANGE.match(text or f"bytes 0-{self.left - 1}/{self.left}")
        if text is None and not self.left:
            wanted = _CONTENT_RANGE.match("bytes */0")
        if wanted is None:
            raise Refusal(400, "badRequest", f"Content-Range {text!r} cannot be read.")
        total = None if wanted[3] == "*" else int(wanted[3])
        if wanted[1] is not None:
            self._receive(upload, int(wanted[1]), int(wanted[2]), total)
        if total is None or upload.received < total:
            span = {"Range": f"bytes=0-{upload.received - 1}"} if upload.received else {}
            self.answer(308, span)
            return
        with self.mine.lock:
            try:
                file = self._store(who, upload.file_id, upload.metadata, upload.path, upload.params)
            finally:
                upload.path.unlink(missing_ok=True)
                if not upload.done:
                    self.mine.uploads.pop(self.params["upload_id"], None)
            upload.done = file.id
            self.mine.uploads[self.params["upload_id"]] = upload
            self._say_file(file, who)

    def _receive(self, upload: Upload, first: int, last: int, total: int | None) -> None:
        size = last - first + 1
        final = total is not None and last + 1 == total
        if self.left != size or (size % CHUNK and not final):
            raise Refusal(
                400, "badRequest", f"A chunk of {self.left} bytes is no multiple of {CHUNK}."
            )
        if first != upload.received:
            raise Refusal(400, "badRequest", f"The upload is at {upload.received}, not at {first}.")
        with upload.path.open("r+b") as file:
            file.seek(first)
            try:
                for block in self._body():
                    file.write(block)
                    upload.received += len(block)
            except (_Cut, ConnectionError):
                # what came whole is kept, the rest must be sent again
                upload.received -= upload.received % CHUNK
                raise

    # --- OAuth ------------------------------------------------------------------------------------------

    def _token(self, who: Who) -> None:
        form = self._form()
        with self.mine.lock:
            answer = self.mine.oauth.token(form)
        self._say(answer, "*")

    def _auth(self, who: Who) -> None:
        with self.mine.lock:
            where = self.mine.oauth.page(self.params)
        self.answer(302, {"Location": where})


def _split(piece: bytes) -> tuple[Mapping[str, str], bytes]:
    """Headers and content of one part of a multipart body."""
    head, _, body = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    if not _:
        head, _, body = piece.removeprefix(b"\n").partition(b"\n\n")
    for end in (b"\r\n", b"\n"):
        if body.endswith(end):
            body = body[: -len(end)]
            break
    parsed = email.parser.BytesHeaderParser().parsebytes(head)
    return {name: str(value) for name, value in parsed.items()}, body
