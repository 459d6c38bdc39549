"""A YAML file becomes jobs: read, checked, completed from the environment, its matrix expanded.

Decides what the fields mean together; which fields there are stands in table.py. Reads the file and looks
whether folders exist, nothing else. Does not know which platforms there are: the caller may tell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from freegpu.cards import filters
from freegpu.errors import JobSpecError
from freegpu.jobs import document, matrix
from freegpu.jobs import overrides as changes
from freegpu.jobs.accelerators import Choice
from freegpu.jobs.document import Node, Object, Scalar, fail, found, quoted
from freegpu.jobs.kinds import Reading, Section, Value
from freegpu.jobs.matrix import after_cycle
from freegpu.jobs.model import Accelerator, Checkpointing, JobSpec, Needs
from freegpu.jobs.retry import Retry
from freegpu.jobs.special import MAX_NAME, job_name, mount_target
from freegpu.jobs.table import ROOT

__all__ = ["Loaded", "after_cycle", "load", "loads"]

_VARIABLE = r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))"


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """What a file asks for. Secret values are here and in no spec."""

    specs: tuple[JobSpec, ...]
    #: one line for every field that has no effect, with the reason
    notices: tuple[str, ...] = ()
    #: values of the variables that `JobSpec.secrets` names
    secrets: Mapping[str, str]

    def __repr__(self) -> str:
        """Without the values of secrets: a repr ends up in logs."""
        return f"Loaded({len(self.specs)} specs, secrets {sorted(self.secrets)})"


def load(
    path: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str],
    platforms: Collection[str] = (),
) -> Loaded:
    """The jobs in a file. JobSpecError names file, line and field, whatever the file holds.

    `overrides` are the KEY=VALUE of --set (a secret's is secrets.NAME=VALUE); `platforms` are the names that
    exist, and empty takes any name.
    """
    return loads(
        document.read(Path(path)),
        path=path,
        overrides=overrides,
        environ=environ,
        platforms=platforms,
    )


def loads(
    text: str,
    *,
    path: str | os.PathLike[str] = "job.yaml",
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    platforms: Collection[str] = (),
) -> Loaded:
    """As `load`, from text; relative folders are seen from the folder of `path`."""
    root = document.parse(text, os.fspath(path))
    if not isinstance(root, Object):
        message = f"a job spec is a mapping of fields, found {found(root)}"
        fail(root, "", message, hint="the smallest job is one line: run: echo hello")
    reading = Reading(platforms=platforms)
    section = ROOT.read(changes.apply(root, overrides), "", reading)
    return _Maker(section, reading, Path(path), environ or {}).make()


class _Maker:
    """Puts the values of one spec together."""

    def __init__(
        self, root: Section, reading: Reading, path: Path, environ: Mapping[str, str]
    ) -> None:
        self.root = root
        self.reading = reading
        self.path = path
        self.environ = environ
        empty = Section(node=Object(entries={}, origin=str(path), line=None), values={})
        self.extra: Section = root.get("freegpu", empty)
        self.resources: Section = root.get("resources", empty)
        self.empty = empty

    def make(self) -> Loaded:
        axes: dict[str, tuple[str, ...]] = self.extra.get("matrix", {})
        secrets = self._secrets(axes)
        envs = self._envs(axes)
        base = JobSpec(
            name=self.root.get("name") or self._default_name(),
            run=self.root.get("run"),
            setup=self.root.get("setup", ""),
            workdir=self._workdir(envs),
            envs=envs,
            secrets=tuple(secrets),
            file_mounts=self._mounts(envs),
            needs=self._needs(),
            estimate=self.extra.get("estimate"),
            checkpoint=self._checkpoint(),
            outputs=self.extra.get("outputs", ()),
            deadline=self.extra.get("deadline"),
            priority=self.extra.get("priority", 0),
            retry=self._retry(),
            after=self.extra.get("after", ()),
        )
        cells = matrix.expand(base.name, axes, longest=MAX_NAME)
        for name in (base.name, *(cell.name for cell in cells)):
            if name in base.after:
                at = self.extra.at("after")
                message = f"freegpu.after: {name} waits for itself"
                hint = "take it out of after; an earlier job of the same name is named by its id"
                fail(at, "freegpu.after", message, hint=hint)
        specs = tuple(
            replace(base, name=cell.name, envs={**envs, **cell.values}, cell=cell.values)
            for cell in cells
        )
        return Loaded(specs=specs, notices=tuple(self.reading.notices), secrets=secrets)

    def _default_name(self) -> str:
        stem = self.path.stem
        if stem in ("job", "task", ""):
            stem = Path(os.path.abspath(self.path)).parent.name
        try:
            return job_name(stem)
        except ValueError:
            return "job"

    # --- variables ---------------------------------------------------------------------------------

    def _given(self, section: str, name: str) -> str:
        """What the caller's environment holds for a variable that the file leaves open."""
        node = self._at(section, name)
        value = self.environ.get(name)
        if value is None or (section == "secrets" and not value):
            option = "set" if section == "envs" else "secret"
            message = f"{section}.{name} is left open and {name} is not in the environment"
            fail(
                node, f"{section}.{name}", message, hint=f"add --{option} {name}=VALUE or export it"
            )
        here = Scalar(text=value, plain=False, origin=node.origin, line=node.line)
        return Value().read(here, f"{section}.{name}", self.reading) or ""

    def _at(self, section: str, name: str) -> Node:
        inside = self.root.at(section)
        entry = inside.entries.get(name) if isinstance(inside, Object) else None
        return entry.key if entry else inside

    def _envs(self, axes: Collection[str]) -> dict[str, str]:
        envs: dict[str, str] = {}
        for name, value in self.root.get("envs", {}).items():
            if value is None and name in axes:
                continue  # every cell brings its own value
            envs[name] = self._given("envs", name) if value is None else value
        return envs

    def _secrets(self, axes: Collection[str]) -> dict[str, str]:
        secrets: dict[str, str] = {}
        for name, value in self.root.get("secrets", {}).items():
            node = self._at("secrets", name)
            for other, names in (("envs", self.root.get("envs", {})), ("freegpu.matrix", axes)):
                if name in names:
                    message = f"{name} stands in secrets and in {other}: a secret is never in clear"
                    fail(node, f"secrets.{name}", message)
            clear = self.root.at("secrets")
            written = clear.get(name) if isinstance(clear, Object) else None
            if value is not None and written and written.line:
                text = f"secrets.{name} is written in clear in this file; null takes it from the environment"
                self.reading.notice(node, text)
            secrets[name] = self._given("secrets", name) if value is None else value
        return secrets

    # --- folders -----------------------------------------------------------------------------------

    def _local(self, text: str, envs: Mapping[str, str]) -> str:
        """An absolute path: ${VARIABLES} of envs filled in, ~ expanded, relative to the file's folder."""
        text = _filled(text, envs)
        home = self.environ.get("HOME")
        if home and (text == "~" or text.startswith("~/")):
            text = home + text[1:]
        where = os.path.abspath(os.path.join(self.path.parent, os.path.expanduser(text)))
        try:
            where.encode()
        except UnicodeEncodeError:
            message = f"the name of the folder {where} is not UTF-8 text"
            raise JobSpecError(
                document.one_line(message), hint="rename it", path=document.one_line(str(self.path))
            ) from None
        return where

    def _workdir(self, envs: Mapping[str, str]) -> str:
        text = self.root.get("workdir")
        if text is None:
            return ""
        where = self._local(text, envs)
        if not os.path.isdir(where):
            what = "is not a folder" if os.path.exists(where) else "does not exist"
            near = os.path.isdir(text) and not os.path.isabs(text)
            hint = (
                "it is looked for beside the YAML file, not where the command runs"
                if near
                else "make the folder, or write `workdir: .` for the folder of the YAML file"
            )
            fail(self.root.at("workdir"), "workdir", f"workdir: {where} {what}", hint=hint)
        return where

    def _mounts(self, envs: Mapping[str, str]) -> dict[str, str]:
        mounts: dict[str, str] = {}
        for key, source in self.root.get("file_mounts", {}).items():
            dotted = f"file_mounts.{key}"
            at = self._at("file_mounts", key)
            try:
                target = mount_target(_filled(key, envs))
            except ValueError as error:
                hint = "write it relative, as in data/train.csv"
                fail(at, dotted, f"file_mounts: the target {quoted(key[:80])} {error}", hint=hint)
            if target in mounts:
                fail(at, dotted, f"file_mounts: the target {quoted(target[:80])} stands twice")
            where = mounts[target] = self._local(source, envs)
            if not os.path.exists(where):
                message = f"{dotted}: {where} does not exist"
                hint = "it is looked for beside the YAML file; write target: source"
                fail(at, dotted, message, hint=hint)
        return mounts

    # --- what a place must have ------------------------------------------------------------------------

    def _needs(self) -> Needs:
        choice = self._choice()
        vram = max(self.extra.get("vram", 0.0), choice.vram_gb)
        if vram and choice.accelerators and all(a.card == "CPU" for a in choice.accelerators):
            message = (
                f"freegpu.vram asks for a card with {vram:g} GB, resources.accelerators for a CPU"
            )
            hint = "take one of the two out"
            fail(self.extra.at("vram"), "freegpu.vram", message, hint=hint)
        precision = self.extra.get("precision", "any")
        named = [a.card for a in choice.accelerators]
        if named and all(filters.unfit(card, precision=precision, named=True) for card in named):
            message = (
                f"freegpu.precision asks for bf16, and {' and '.join(named)} cannot compute in it"
            )
            hint = "take another card, or compute in FREEGPU_PRECISION, which the job is told"
            fail(self.extra.at("precision"), "freegpu.precision", message, hint=hint)
        cpus = self._floor("cpus")
        return Needs(
            accelerators=choice.accelerators,
            ordered=choice.ordered,
            vram_gb=vram,
            memory_gb=self._floor("memory", cpus),
            cpus=cpus,
            disk_gb=self._floor("disk_size"),
            platforms=self.extra.get("platforms", ()),
            workload=self.extra.get("workload", "general"),
            precision=precision,
        )

    def _choice(self) -> Choice:
        """The cards of `accelerators`, or of all alternatives together."""
        own = self._cards(self.resources)
        names = [name for name in ("any_of", "ordered") if name in self.resources.values]
        if not names:
            word = "gpus" if "gpus" in self.resources.values else "accelerators"
            self._tell_elsewhere(own.elsewhere, own, word)
            return own
        if len(names) == 2:
            at = self.resources.at("ordered")
            message = "resources has any_of and ordered; choose one"
            fail(at, "resources.ordered", message, hint="ordered is any_of with a preference")
        dotted = f"resources.{names[0]}"
        at = self.resources.at(names[0])
        cards: dict[Accelerator, None] = {}
        sizes = []
        elsewhere: dict[str, None] = {}
        for alternative in self.resources.get(names[0]):
            choice = self._cards(alternative, own)
            elsewhere.update(dict.fromkeys(choice.elsewhere))
            if choice.only_elsewhere:
                continue
            sizes.append(choice.vram_gb)
            if not choice.accelerators and not choice.vram_gb:
                cards[Accelerator(card="CPU")] = None  # SkyPilot: an alternative without a card
            cards.update(dict.fromkeys(choice.accelerators))
        if any(sizes) and cards:
            message = f"{dotted} mixes cards by name and by memory; name the cards"
            fail(at, dotted, message, hint="or say only freegpu.vram, for any card of that memory")
        # by memory alone: the smallest of the sizes will do
        chosen = Choice(
            accelerators=tuple(cards),
            ordered=names[0] == "ordered" and len(cards) > 1,
            vram_gb=min(sizes, default=0.0),
        )
        self._tell_elsewhere(tuple(elsewhere), chosen, names[0])
        return chosen

    def _cards(self, section: Section, default: Choice | None = None) -> Choice:
        """What one set of resources says of cards, under either of SkyPilot's two words for it."""
        words = [word for word in ("accelerators", "gpus") if word in section.values]
        if len(words) == 2:
            message = "resources has accelerators and gpus, which mean the same; choose one"
            fail(section.at("gpus"), "resources.gpus", message, hint="take gpus out")
        chosen: Choice = section.get(words[0]) if words else (default or Choice())
        return chosen

    def _alternatives(self) -> Sequence[Section]:
        """What any_of or ordered lists, less what only a card that no free platform has could do."""
        listed: Sequence[Section] = (
            self.resources.get("any_of") or self.resources.get("ordered") or ()
        )
        own = self._cards(self.resources)
        return [one for one in listed if not self._cards(one, own).only_elsewhere]

    def _tell_elsewhere(self, names: Sequence[str], chosen: Choice, word: str) -> None:
        """Cards that SkyPilot's clouds have and no free platform: told, or refused where nothing else will do."""
        at, listed = self.resources.at(word), " and ".join(names)
        if names and not chosen.accelerators and not chosen.vram_gb:
            message = f"resources.{word}: no free platform has {listed}"
            hint = "name a card that `freegpu cards` shows, or any of a size: freegpu: {vram: 24+}"
            fail(at, f"resources.{word}", message, hint=hint)
        if names:
            text = f"resources.{word}: without {listed}, which no free platform has"
            self.reading.notice(at, text)

    def _floor(self, name: str, cpus: float = 0.0) -> float:
        """The least amount of cpus, memory or disk: the largest that any alternative asks for."""
        asked = [self._amount(one, name, cpus) for one in (self.resources, *self._alternatives())]
        if any(amount not in (0.0, max(asked)) for amount in asked[1:] or ()):
            text = f"resources: {name} differs between alternatives; {max(asked):g} is asked for in all"
            self.reading.notice(self.resources.node, text)
        return max(asked)

    def _amount(self, section: Section, name: str, cpus: float) -> float:
        value: Any = section.get(name, 0.0)
        if not isinstance(value, tuple):
            return float(value)
        unit, amount = value
        if unit == "GB":
            return float(amount)
        if not cpus:
            text = f"resources.memory: {amount:g}x has no effect without resources.cpus"
            self.reading.notice(section.at(name), text)
        return float(amount * cpus)

    # --- freegpu -----------------------------------------------------------------------------------------

    def _checkpoint(self) -> Checkpointing:
        section: Section = self.extra.get("checkpoint", self.empty)
        default = Checkpointing()
        return Checkpointing(
            path=section.get("path", default.path),
            every_s=section.get("every", default.every_s),
            keep=section.get("keep", default.keep),
            grace_s=section.get("grace", default.grace_s),
            window=section.get("window", default.window),
        )

    def _retry(self) -> Retry:
        section: Section = self.extra.get("retry", self.empty)
        default = Retry()
        return Retry(
            failures=section.get("failures", default.failures),
            preemptions=section.get("preemptions", default.preemptions),
        )


def _filled(text: str, envs: Mapping[str, str]) -> str:
    """The text with $NAME and ${NAME} of `envs` put in; other variables stay."""
    return re.sub(_VARIABLE, lambda m: envs.get(m[1] or m[2], m[0]), text)
