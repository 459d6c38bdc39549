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
}

_TAIL = """\
if hashlib.sha256(data).hexdigest() != cell["sha256"]:
    raise SystemExit("freegpu: the store has no agent that this cell was made for; make a new one: freegpu cell {platform}")
agent = pathlib.Path(tempfile.mkdtemp(prefix="freegpu-"), "freegpu-agent.pyz")
agent.write_bytes(data)
for name in [name for name in sys.modules if name.split(".")[0] == "freegpu"]:
    del sys.modules[name]  # an agent of an earlier run of this cell
sys.path.insert(0, str(agent))
from freegpu.agent.notebook import run

run(cell, agent)
"""


def text(cell: Mapping[str, Any], *, version: str) -> str:
    """The Python text of a cell. `cell` is what freegpu.agent.notebook.run takes."""
    scheme, _, rest = cell["store"].partition(":")
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
    return head + mount + _FETCH[scheme] + _TAIL.format(platform=cell["platform"])


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
