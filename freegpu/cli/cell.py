"""`cell`: the agent cell for a notebook."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from pathlib import Path

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.errors import ConfigError


@command("cell", example="freegpu cell colab --ipynb freegpu.ipynb\nfreegpu cell jupyter > cell.py")
@click.argument("platform", default="jupyter", metavar="[PLATFORM]")
@click.option(
    "--ipynb", metavar="FILE", help="Write a notebook to open there, instead of printing the cell."
)
@click.option("--store", metavar="URL", help="The store's address as the notebook sees it.")
@click.option(
    "--new",
    "fresh",
    is_flag=True,
    help="Make the platform's earlier cell worthless, e.g. after it leaked.",
)
def cell(call: Call, platform: str, ipynb: str | None, store: str | None, fresh: bool) -> Result:
    """Make the agent cell for a notebook.

    PLATFORM is colab, kaggle, saturn, paperspace, studiolab or jupyter (the default), or an attended one of
    your freegpu.toml. Running the cell there works off your queue in the foreground, on that machine's cards, until the queue is empty.
    The same cell can be run again any day; what runs is checkpointed and goes on elsewhere when it ends.
    """
    with call.workspace() as workspace:
        made = workspace.cell(platform, store=store, fresh=fresh)
    if ipynb:
        _write(Path(ipynb), json.dumps(made.notebook, indent=1, ensure_ascii=False) + "\n")
    data = {
        "platform": made.platform,
        "title": made.title,
        "url": made.url,
        "cell": made.id,
        "store": made.store,
        "ipynb": str(Path(ipynb).absolute()) if ipynb else None,
        "text": made.text,
        "secrets": made.secrets,
        "key": made.key,
    }

    def show(out: Output) -> None:
        if ipynb:
            out.line(str(data["ipynb"]))
        else:
            out.raw(made.text.encode())
        where = f"open it at {made.url}" if made.url else "run it where your notebook is"
        out.note(f"{'the notebook' if ipynb else 'the cell'} is for {made.title}: {where}")
        for name in made.secrets:
            out.note(f"it needs the secret {name} in the notebook's own secret store")
        if made.key:
            out.note(
                f"the notebook may be public, so the key is not in it; FREEGPU_CELL_KEY is {made.key}"
            )
        elif not ipynb:
            out.note("whoever has the cell can answer for your sessions: keep it to yourself")
        out.note("keep `freegpu up` running here, so that it is given work")

    return Result(data=data, show=show)


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a notebook that somebody has open is not left half written."""
    hidden = path.absolute().parent / f".freegpu-{secrets.token_hex(4)}.part"
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(hidden, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise ConfigError(
            f"the notebook {path} cannot be written: {(error.strerror or str(error)).lower()}",
            hint="choose another file with --ipynb",
        ) from error
