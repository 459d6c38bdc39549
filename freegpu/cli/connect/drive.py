"""`connect drive`: sign in to Google Drive once; notebooks are told how they get in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.connect.store import telling
from freegpu.cli.output import Output
from freegpu.cli.text import size
from freegpu.errors import AuthError, ConfigError

if TYPE_CHECKING:
    from freegpu.orchestrator.connection import Connected
    from freegpu.orchestrator.drive_access import Client, SignedIn

__all__ = ["drive"]

SECRET = "FREEGPU_DRIVE"  # noqa: S105 - the name of a secret


@command(
    "connect drive",
    example="freegpu connect drive --client ~/Downloads/client_secret_1234.json\n"
    "freegpu connect drive --rclone mydrive --use\n"
    "freegpu connect drive --show-secret",
)
@click.option(
    "--client",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSON file of your own OAuth client, a desktop app.",
)
@click.option("--rclone", metavar="REMOTE", help="Take the sign-in of this remote of rclone's.")
@click.option(
    "--scope",
    type=click.Choice(["drive.file", "drive"]),
    help="What to ask for: the files of this client alone (default), or the whole Drive.",
)
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
@click.option(
    "--use", is_flag=True, help="Use drive:freegpu as the store, also if another one is set."
)
@click.option(
    "--show-secret", is_flag=True, help=f"Print the value of {SECRET}, for a notebook's secrets."
)
def drive(
    call: Call,
    client: Path | None,
    rclone: str | None,
    scope: str | None,
    no_browser: bool,
    use: bool,
    show_secret: bool,
) -> Result:
    """Sign in to Google Drive, to keep the store there.

    Signs in by a browser, tries the sign-in at once and keeps it in the system's keyring (or in a private file of the
    home). The store becomes drive:freegpu if none is set. Signed in already, it tells who you are.
    """
    from freegpu.orchestrator import drive_access

    if client and rclone:
        raise click.UsageError("--client and --rclone are two ways to do the same: give one")
    if rclone and scope:
        raise click.UsageError("--scope cannot change what a remote of rclone's was allowed")
    home = call.settings.home
    grant, fresh = _grant(call, home, client, rclone, scope, no_browser=no_browser)
    found = drive_access.check(grant)
    kept = drive_access.keep(home, grant) if fresh else ""
    connected, note = _used(call, found.store, use=use)
    secret = json.dumps({name: grant[name] for name in _FIELDS})
    data = {
        "account": found.account,
        "scope": found.scope,
        "free": found.free,
        "total": found.total,
        "signed_in": fresh,
        "kept": kept or None,
        "store": found.store,
        "connected": connected,
        "notebooks": _notebooks(found),
        **({"secret": secret} if show_secret else {}),
    }

    def show(out: Output) -> None:
        if show_secret:
            # alone on stdout, so that it can be piped into a clipboard
            out.line(secret)
            return
        _show(out, found, kept, connected)
        if found.twins:
            out.warn(
                f"{found.twins + 1} folders in My Drive are called freegpu: the oldest is the store",
                "rename the others, so that you do not mistake them",
            )
        if note:
            out.warn(note.message, note.hint)

    return Result(data=data, show=show)


#: what a notebook needs of a sign-in
_FIELDS = ("client_id", "client_secret", "refresh_token", "token_uri", "scope")


def _grant(
    call: Call,
    home: Path,
    client: Path | None,
    rclone: str | None,
    scope: str | None,
    *,
    no_browser: bool,
) -> tuple[dict[str, str], bool]:
    """A sign-in, and whether it is new. Whoever is signed in already is asked nothing."""
    from freegpu.orchestrator import drive_access

    if rclone:
        return drive_access.from_rclone(rclone, call.environ), True
    text = call.environ.get(SECRET) or drive_access.kept(home)
    if client is None and text:
        grant = _parsed(text)
        known = grant is not None and (
            scope is None or drive_access.SCOPES[scope] in grant["scope"].split()
        )
        if grant is not None and known:
            try:
                drive_access.check(grant)
            except AuthError:
                if call.environ.get(SECRET):
                    raise
            else:
                return grant, False
    used = drive_access.Client.read(client.expanduser()) if client else drive_access.client_of(text)
    if used is None:
        raise ConfigError(
            "not signed in to Google Drive yet, and no OAuth client to sign in with",
            hint="make one (docs/how-to/store-on-drive.md), then: freegpu connect drive --client FILE.json;"
            " or take rclone's sign-in: --rclone REMOTE",
        )
    return _signed_in(call, used, scope or "drive.file", no_browser=no_browser), True


def _parsed(text: str) -> dict[str, str] | None:
    from freegpu.agent.stores.google import SignInGone, parse_secret

    try:
        grant = parse_secret(text)
        return {**{str(k): str(v) for k, v in json.loads(text).items()}, **grant}
    except SignInGone:
        return None


def _signed_in(call: Call, client: Client, scope: str, *, no_browser: bool) -> dict[str, str]:
    import webbrowser

    from freegpu.orchestrator.drive_sign_in import sign_in

    def ask(url: str, port: int) -> None:
        opened = False if no_browser else webbrowser.open(url)
        call.out.note(
            "sign in on the page that opens in your browser, or open" if opened else "open"
        )
        call.out.note(f"  {url}")
        if not opened:
            call.out.note(
                f"in a browser on this machine (from afar: ssh -L {port}:127.0.0.1:{port} first)"
            )

    return sign_in(client, scope, ask)


def _used(call: Call, url: str, *, use: bool) -> tuple[Connected | None, ConfigError | None]:
    """Make it the store, if asked to or if none is set; what stood in the way of the latter is a note."""
    from freegpu.agent.stores.drive import place

    settings = call.settings
    set_now, colon, rest = settings.store.partition(":")
    if colon and set_now == "drive" and place(rest) == place(url.partition(":")[2]) and not use:
        return None, None
    if not use and settings.sources.get("store", "default") != "default":
        return None, None
    with call.workspace() as workspace:
        try:
            return workspace.connect_store(url, say=telling(call)), None
        except ConfigError as error:
            if use:
                raise
            return None, error


def _notebooks(found: SignedIn) -> str:
    """How a notebook gets at the same files: docs/adr/0006."""
    if found.scope == "drive":
        return (
            "a Colab cell may sign in as you (google.colab.auth): nothing to paste;"
            f" other notebooks need the secret {SECRET}"
        )
    return (
        f"every notebook needs the secret {SECRET}: files that Colab's own sign-in makes are not seen"
        " here, nor ours there"
    )


def _show(out: Output, found: SignedIn, kept: str, connected: Connected | None) -> None:
    left = "no limit" if found.free is None else f"{size(found.free)} of {size(found.total or 0)}"
    out.line("signed in to Google Drive")
    out.facts(
        [
            ("account", found.account),
            ("sees", "the whole Drive" if found.scope == "drive" else "only what this client made"),
            ("left", left),
            ("sign-in kept in", kept),
            ("store", f"{found.store}{' (from now on)' if connected else ''}"),
            ("notebooks", _notebooks(found)),
        ]
    )
    if connected is None:
        out.note("to use it as the store: freegpu connect drive --use")
    out.note(
        f"for a notebook: `freegpu connect drive --show-secret` prints the value; in Colab click the key icon at the left,"
        f" add a secret called {SECRET}, paste it, and allow the notebook to use it"
    )
