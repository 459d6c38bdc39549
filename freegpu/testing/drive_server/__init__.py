"""A Google Drive of our own on the loopback: the wire format of Drive v3 and of Google's OAuth, with faults.

::

    with DriveServer() as server:
        token = server.oauth.grant("client-a", "drive.file")
        store = DriveStore(f"freegpu?endpoint={server.url}", Access(secrets={"FREEGPU_DRIVE": token}))

What it does is what Google documents, and what google-api-python-client relies on; tests hold the latter. What
only the real Drive can tell (how long its listings lag, which limits an account has) is a switch here.
"""

from __future__ import annotations

from freegpu.testing.drive_server.model import Drive, File, Refusal
from freegpu.testing.drive_server.oauth import Token
from freegpu.testing.drive_server.server import DriveServer, Fault

__all__ = ["Drive", "DriveServer", "Fault", "File", "Refusal", "Token"]
