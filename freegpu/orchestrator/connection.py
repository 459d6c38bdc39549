"""Connecting a store: open it, make it this home's, measure it, and only then write it into the settings.

A store is left only when nothing open depends on it: jobs' code, checkpoints and mailboxes lie there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from freegpu import config
from freegpu.adapters import registry
from freegpu.adapters.base import Adapter, Diagnosed, Finding, Rules
from freegpu.adapters.stores import orchestrator_only
from freegpu.agent.stores.base import Store, StoreError
from freegpu.config import PlatformSettings, Settings
from freegpu.errors import ConfigError, LedgerBusyError, SharedStoreError
from freegpu.jobs.lifecycle import JobState
from freegpu.orchestrator import probe, shared
from freegpu.orchestrator.home import current_holder, home_key
from freegpu.orchestrator.probe import Measured
from freegpu.settings_file import set_platform, set_text

if TYPE_CHECKING:
    from freegpu.orchestrator.operations import Workspace


@dataclass(frozen=True, kw_only=True, slots=True)
class Connected:
    """A store that is used from now on."""

    store: str
    #: freegpu.toml, where it is written
    file: str
    #: False: it was written there already
    changed: bool
    #: it bore no mark before
    made: bool
    measured: Measured
    #: what that means for jobs
    means: tuple[str, ...]
    #: what a person should know besides
    notes: tuple[str, ...] = ()


def connect_store(
    workspace: Workspace, url: str, *, force: bool, say: Callable[[str], None]
) -> Connected:
    """Use this store from now on. `say` is told what is being measured.

    ConfigError: the URL cannot be meant, or open jobs depend on the store before. SharedStoreError: it cannot
    be used. LedgerBusyError: an orchestrator is at work with the store before. Nothing was changed then.
    """
    settings = chosen(workspace.settings, url)
    with workspace.orchestrating("freegpu connect") as holder:
        if holder is not None:
            raise LedgerBusyError(
                f"{holder} is at work with the store {config.without_password(workspace.settings.store)}",
                hint="stop it, connect the store, and start it again",
            )
        notes = list(_leaving(workspace, settings, force=force))
        home_key(settings.home)
        made = workspace.ledger.meta(f"store:{settings.store}") is None
        shared.hang_up(shared.open_shared(settings, workspace.ledger, workspace.home_id))
        measured = measure(workspace, settings, say)
        changed = set_text(settings.home, "store", settings.store)
    source = workspace.settings.sources.get("store", "")
    if source == "FREEGPU_STORE" and workspace.settings.store != settings.store:
        notes.append(
            "FREEGPU_STORE is set in your environment and goes before freegpu.toml: unset it to use this store"
        )
    return Connected(
        store=settings.store,
        file=str(settings.home / config.FILE_NAME),
        changed=changed,
        made=made,
        measured=measured,
        means=probe.means(measured, settings.store),
        notes=(*notes, *measured.problems),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformConnected:
    """What was found out about a platform, and whether it is used from now on."""

    platform: str
    adapter: str
    account: str
    #: freegpu.toml, where it is or would be written
    file: str
    findings: tuple[Finding, ...]
    #: False: something that it needs is missing, and nothing was written
    connected: bool
    #: False: it was written there already
    changed: bool
    notes: tuple[str, ...] = ()


def connect_platform(
    workspace: Workspace,
    name: str,
    adapter: str,
    options: Mapping[str, Any],
    *,
    store: str | None = None,
    accept: Collection[str] = (),
) -> PlatformConnected:
    """Use this platform from now on. Options that are None are taken out of its table.

    `store`: how its sessions see the store; "": as it is seen here; None: as was said before. `accept`: the names of rules
    that the person has accepted. ConfigError: the options or the store cannot be meant, a second account, or rules that
    were not accepted; nothing was changed then.
    """
    store = None if store is None else _seen(store)
    settings = workspace.settings
    config.check_platform_name(name)
    before = settings.platforms.get(name)
    kept = dict(before.options) if before is not None and before.adapter == adapter else {}
    merged = {k: v for k, v in {**kept, **options}.items() if v is not None}
    kind = registry.kind_of(name, adapter)
    rules: Rules | None = getattr(kind, "rules", None)
    if rules is not None and merged.get("accepted") != rules.name:
        if rules.name not in accept:
            raise ConfigError(
                f"{name}: {' '.join(rules.sentences)}",
                hint=f"read {rules.url}; if you accept that for your account, add --accept {rules.name}",
            )
        merged["accepted"] = rules.name
    seen = store if store is not None else before.store if before is not None else ""
    platform = PlatformSettings(name=name, adapter=adapter, options=merged, store=seen)
    platforms = {**settings.platforms, name: platform}
    registry.refuse_second_accounts(platforms)
    made = registry.create(name, adapter, merged, home=settings.home, clock=workspace.clock)
    proposed = replace(settings, platforms=platforms)
    shared.entrust(made, proposed, workspace.ledger, name)
    try:
        findings = tuple(diagnose(made, proposed))
        # who the platform says is signed in, where an adapter holds itself to that from now on
        signed_in = str(getattr(made, "signed_in", ""))
        account = signed_in or made.account
    finally:
        made.close()
    connected = all(finding.ok is not False for finding in findings)
    changed = False
    if connected:
        merged.update({"account": signed_in} if signed_in else {})
        told = {"adapter": adapter, **dict.fromkeys(kept), **merged, "store": seen or None}
        changed = set_platform(settings.home, name, told)
        if name not in workspace.ledger.first_seen():
            # from now on its quota is ours to use, and `report` counts what expires
            workspace.ledger.record("platform.connected", f"by {adapter}", platform=name)
    notes = []
    holder = current_holder(settings.home)
    if changed and holder is not None and "up" in holder.command.split():
        notes.append(f"{holder} takes it in at its next tick")
    return PlatformConnected(
        platform=name,
        adapter=adapter,
        account=account,
        file=str(settings.home / config.FILE_NAME),
        findings=findings,
        connected=connected,
        changed=changed,
        notes=tuple(notes),
    )


def _seen(url: str) -> str:
    """The store's address as sessions see it. ConfigError: an agent could make nothing of it."""
    url = url.strip()
    if not url:
        return ""
    if config.without_password(url) != url:
        raise ConfigError(
            "the store's URL holds a password, which freegpu.toml is no place for",
            hint="leave it out: sessions are given what opening the store takes when they start",
        )
    folder = shared.folder_of(url)
    if folder is not None:
        if not folder.is_absolute():
            raise ConfigError(
                f"{url} is no place there: a relative folder is another one wherever a session begins",
                hint="name the whole path, for example folder:/mnt/freegpu",
            )
        return f"folder:{folder}"
    if not url.startswith(("s3:", "drive:")) and not orchestrator_only(url):
        raise ConfigError(
            f"{url} is no store that freegpu knows",
            hint="sessions open folder:/PATH, s3://BUCKET/PREFIX and drive:FOLDER",
        )
    return url


def diagnose(adapter: Adapter, settings: Settings) -> Iterator[Finding]:
    """What an adapter finds out about itself, and whether its sessions can open the store at all."""
    store = settings.store_for(adapter.name)
    if isinstance(adapter, Diagnosed):
        yield from adapter.diagnose(store)
    unseen = shared.unseen(settings, adapter)
    if unseen:
        yield Finding(
            name="store",
            ok=False,
            detail=unseen,
            hint="`freegpu connect store URL` chooses one that both sides reach: s3: or drive:; or `freegpu connect`"
            " this platform with --store URL, if its sessions see the same files at an address of their own",
        )
    elif (there := _out_of_reach(settings, adapter)) is not None:
        yield there


def _out_of_reach(settings: Settings, adapter: Adapter) -> Finding | None:
    """A store at an address that only this machine or this network knows, and sessions that run elsewhere."""
    known, url = adapter.capabilities, settings.store_for(adapter.name)
    kind = shared.out_of_reach(url)
    if not kind or known.here or known.sealed or known.attended:
        return None
    named = settings.platforms.get(adapter.name)
    # an account with a provider means machines of the provider's; a host of one's own may be in the same network
    provider = bool(getattr(adapter, "one_account", ""))
    told = named is not None and bool(named.store)
    detail = {
        "loopback": f"{url} is an address of this machine itself: sessions there cannot reach it",
        "private": f"{url} is an address of a private network: "
        + ("sessions there cannot reach it" if provider else "only sessions inside it reach it"),
    }[kind]
    return Finding(
        name="store",
        # who said how sessions there see the store may know of a tunnel that we do not
        ok=False if not told and (provider or kind == "loopback") else None,
        detail=detail,
        hint="use a store with a public address, or `freegpu connect` this platform with --store URL: how it is seen there",
    )


def chosen(settings: Settings, url: str) -> Settings:
    """The settings with this store, a relative folder seen from here. ConfigError: a URL nobody can mean."""
    if url.strip() in ("", "folder:"):
        raise ConfigError(
            "the store's URL is empty", hint="for example folder:/mnt/drive/freegpu or s3://BUCKET"
        )
    if config.without_password(url) != url:
        raise ConfigError(
            "the store's URL holds a password, which freegpu.toml is no place for",
            hint="leave it out: keys, tokens and remotes are looked up where their own tools keep them",
        )
    read = config.load({"FREEGPU_STORE": url}, home=settings.home)
    sources = {**settings.sources, "store": "the command line"}
    return replace(settings, store=read.store, sources=sources)


def measure(workspace: Workspace, settings: Settings, say: Callable[[str], None]) -> Measured:
    """Probe the store of these settings and remember what was found. SharedStoreError: it failed."""

    clients: list[Store] = []

    def connect() -> Store:
        clients.append(shared.open_client(settings, workspace.ledger, known=False))
        return clients[-1]

    try:
        found = probe.probe(connect, workspace.clock, say=say)
    except StoreError as error:
        raise SharedStoreError(
            f"the store {settings.store} failed while it was measured: {error}",
            hint="try again; if it fails again, choose another one",
        ) from error
    finally:
        for client in clients:
            shared.hang_up(client)
    shared.remember(workspace.ledger, settings.store, found)
    return found


def _leaving(workspace: Workspace, settings: Settings, *, force: bool) -> list[str]:
    """Notes about what stays behind in the store before. ConfigError: open jobs depend on it."""
    before = workspace.settings.store
    if before == settings.store or workspace.ledger.meta(f"store:{before}") is None:
        return []
    ledger = workspace.ledger
    waiting = ledger.jobs(states=[JobState.PENDING, JobState.ACTIVE])
    sessions = ledger.sessions(open_only=True)
    if (waiting or sessions) and not force:
        saved = sum(job.checkpoint is not None for job in waiting)
        raise ConfigError(
            f"{len(waiting)} open jobs ({saved} with a checkpoint) and {len(sessions)} sessions depend on the"
            f" store {config.without_password(before)}",
            hint="wait for them or cancel them; --force leaves their code and checkpoints behind",
        )
    notes = []
    if waiting or sessions:
        notes.append(
            f"{len(waiting)} open jobs cannot go on from what lies in {config.without_password(before)}:"
            " cancel them and submit them again"
        )
    if ledger.jobs(states=[JobState.SUCCEEDED], limit=1):
        notes.append(
            f"results of earlier jobs stay in {config.without_password(before)};"
            " `freegpu pull` with FREEGPU_STORE set to it brings them home"
        )
    return notes
