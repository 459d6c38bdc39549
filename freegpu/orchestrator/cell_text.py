"""The agent cell as text and as a notebook. Pure.

The text is short on purpose: a person should read it before running it. It fetches the agent from the store,
compares its digest with the one written here, and runs it in the foreground.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["notebook", "text"]

_HEAD = """\
# freegpu agent cell for {title}, made by freegpu {version}.
# It runs jobs from your own queue on this machine's {what}, in the foreground, until the queue is empty.
{warning}import hashlib, json, pathlib, sys, tempfile

cell = json.loads(r'''
{data}
''')

class Stop(Exception if "IPython" in sys.modules else SystemExit):
    def _render_traceback_(self):  # in a notebook the sentence alone
        return [str(self)]

"""

_MOUNT = """\
from google.colab import drive
drive.mount("/content/drive")
"""

#: how the agent's bytes come out of each kind of store; `data` is what they end up in
_FETCH: Mapping[str, str] = {
    "folder": """\
archive = pathlib.Path(cell["store"].partition(":")[2], cell["agent"])
data = archive.read_bytes() if archive.is_file() else b""
""",
    "s3": """\
import datetime, hmac, os, urllib.parse, urllib.request
{secret}
try:
    name, key = secret("AWS_ACCESS_KEY_ID"), secret("AWS_SECRET_ACCESS_KEY")
except Exception:  # each platform has its own for a secret that is not there
    name = key = ""
if not name or not key:
    raise Stop("freegpu: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be in the notebook's own secrets, and this notebook must have access to them")
# one signed GET (AWS Signature Version 4)
place = urllib.parse.urlsplit(cell["url"])
moment = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
scope = f"{{moment[:8]}}/{{cell['region']}}/s3/aws4_request"
empty = hashlib.sha256(b"").hexdigest()
names = "host;x-amz-content-sha256;x-amz-date"
lines = f"host:{{place.netloc}}\\nx-amz-content-sha256:{{empty}}\\nx-amz-date:{{moment}}\\n"
request = "\\n".join(("GET", place.path, "", lines, names, empty))
key = ("AWS4" + key).encode()
for word in scope.split("/"):
    key = hmac.new(key, word.encode(), "sha256").digest()
proof = "\\n".join(("AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(request.encode()).hexdigest()))
proof = hmac.new(key, proof.encode(), "sha256").hexdigest()
allow = f"AWS4-HMAC-SHA256 Credential={{name}}/{{scope}}, SignedHeaders={{names}}, Signature={{proof}}"
headers = {{"x-amz-date": moment, "x-amz-content-sha256": empty, "Authorization": allow}}
try:
    ask = urllib.request.Request(cell["url"])
    for name, value in headers.items():
        ask.add_unredirected_header(name, value)  # some stores send on to a CDN, which is not told who we are
    data = urllib.request.urlopen(ask).read()
except OSError as error:
    raise Stop(f"freegpu: the store did not hand out the agent: {{error}}; are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY right?")
""",
    "drive": """\
import os, urllib.parse, urllib.request
{token}
try:
    ask = urllib.request.Request(cell["url"])
    ask.add_unredirected_header("Authorization", f"Bearer {{token}}")
    data = urllib.request.urlopen(ask).read()
except OSError as error:
    raise Stop(f"freegpu: Drive did not hand out the agent: {{error}}; make a new cell if it was deleted there: freegpu cell {platform}")
""",
}

#: access as the person who runs the notebook, asked for in the notebook
_ASKED = """\
import google.auth, google.auth.transport.requests
from google.colab import auth
try:
    auth.authenticate_user()
    person = google.auth.default(scopes=[cell["scope"]])[0]
    person.refresh(google.auth.transport.requests.Request())
    token = person.token
except Exception as error:  # whatever the person or the page answered
    raise Stop(f"freegpu: Colab gave no access to Google Drive: {error}; run the cell again and allow it")"""
#: access by the OAuth client that `freegpu connect drive` signed in with
_GRANTED = """\
{secret}
try:
    grant = json.loads(secret("FREEGPU_DRIVE"))
    form = {{name: grant[name] for name in ("client_id", "client_secret", "refresh_token")}}
    form = urllib.parse.urlencode({{**form, "grant_type": "refresh_token"}}).encode()
    token = json.load(urllib.request.urlopen(grant["token_uri"], form))["access_token"]
except Exception as error:
    raise Stop(f"freegpu: no access to Drive: is the secret FREEGPU_DRIVE there, and is it what `freegpu connect drive --show-secret` prints? ({{type(error).__name__}})")"""

#: how a notebook's own secret store is asked
_SECRET: Mapping[str, str] = {
    "colab": "from google.colab import userdata\nsecret = userdata.get  # Colab's Secrets, the key icon at the left",
    "kaggle": "from kaggle_secrets import UserSecretsClient\nsecret = UserSecretsClient().get_secret  # Add-ons > Secrets",
}

_TAIL = """\
if hashlib.sha256(data).hexdigest() != cell["sha256"]:
    raise Stop(f"freegpu: the agent that this cell was made for is not in {{cell['store']}} as seen from here: is the store there? Else make a new cell: freegpu cell {platform}")
agent = pathlib.Path(tempfile.mkdtemp(prefix="freegpu-"), "freegpu-agent.pyz")
agent.write_bytes(data)
for name in [name for name in sys.modules if name.split(".")[0] == "freegpu"]:
    del sys.modules[name]  # an agent of an earlier run of this cell
sys.path.insert(0, str(agent))
from freegpu.agent.notebook import run

ended = run(cell, agent)
"""


def text(cell: Mapping[str, Any], *, version: str) -> str:
    """The Python text of a cell. `cell` is what freegpu.agent.notebook.run takes."""
    rest = cell["store"].partition(":")[2]
    cards = "processor or cards" if cell["platform"] == "jupyter" else "cards"
    secret = (
        cell["key"]
        and "# Whoever has this cell can answer for your sessions: share neither it nor the notebook.\n"
    )
    data = json.dumps(cell, indent=1, ensure_ascii=True, sort_keys=True)
    if "'''" in data:  # a store's address with quotes in it
        data = data.replace("'", "\\u0027")
    head = _HEAD.format(
        title=cell["title"], version=version, what=cards, warning=secret or "", data=data
    )
    mount = _MOUNT if cell["platform"] == "colab" and rest.startswith("/content/drive") else ""
    return head + mount + _fetch(cell) + _TAIL.format(platform=cell["name"])


def _fetch(cell: Mapping[str, Any]) -> str:
    scheme, platform = cell["store"].partition(":")[0], cell["platform"]
    if scheme == "folder":
        return _FETCH[scheme]
    asked = _SECRET.get(platform, "secret = os.environ.get")
    token = _ASKED if cell["scope"] else _GRANTED.format(secret=asked)
    return _FETCH[scheme].format(secret=asked, token=token, platform=cell["name"])


def notebook(cell: Mapping[str, Any], *, version: str) -> dict[str, Any]:
    """The same as a notebook file (nbformat 4.5) that asks for a GPU where the platform reads that."""
    words = [
        f"**freegpu** works off your own queue on {cell['title']}. Run the cell below.",
        *cell["notes"],
    ]
    metadata: dict[str, Any] = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    if cell["platform"] == "colab":
        metadata["accelerator"] = "GPU"
        metadata["colab"] = {"gpuType": "T4", "private_outputs": True, "provenance": []}
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": metadata,
        "cells": [
            {"cell_type": "markdown", "id": "about", "metadata": {}, "source": "\n".join(words)},
            {
                "cell_type": "code",
                "id": "agent",
                "metadata": {},
                "execution_count": None,
                "outputs": [],
                "source": text(cell, version=version).rstrip("\n"),
            },
        ],
    }
