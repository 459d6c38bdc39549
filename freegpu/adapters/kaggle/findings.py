"""What `connect` and `doctor` are told about a Kaggle account, one finding a subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from freegpu.adapters.base import Finding
from freegpu.agent.stores.base import StoreError
from freegpu.errors import FreeGPUError

__all__ = ["clock", "ending", "installed", "sealed", "sessions", "store"]

#: a clock that is off by more is told, seconds
_SKEW_S = 60.0


def installed() -> Finding:
    try:
        told = version("kagglesdk")
    except PackageNotFoundError:
        hint = "pip install 'kagglesdk>=0.1.38,<0.2'"
        return Finding(name="installed", ok=False, detail="kagglesdk is missing", hint=hint)
    return Finding(name="installed", ok=True, detail=f"kagglesdk {told}")


def clock(skew_s: float | None) -> Finding:
    if skew_s is None:
        return Finding(name="clock", ok=None, detail="Kaggle does not tell its time")
    if abs(skew_s) <= _SKEW_S:
        return Finding(name="clock", ok=True, detail="agrees with Kaggle's")
    return Finding(
        name="clock",
        ok=False,
        detail=f"differs from Kaggle's by {abs(skew_s):.0f} s",
        hint="set this machine's clock by a time server",
    )


def sessions(found: Sequence[tuple[str, bool]]) -> Finding:
    """Notebooks of ours, by slug, with whether they run; whatever home they belong to."""
    if not found:
        return Finding(name="sessions", ok=None, detail="no notebook of freegpu is in the account")
    told = ", ".join(f"{slug} ({'runs' if runs else 'is over'})" for slug, runs in found)
    return Finding(name="sessions", ok=None, detail=f"notebooks of freegpu in the account: {told}")


def sealed() -> Finding:
    return Finding(
        name="carry",
        ok=None,
        detail="sealed: no credentials leave, and no session opens the store; code and checkpoints go in as a private"
        " dataset, and results come back when a session ends",
    )


def store(url: str, secrets: Callable[[], Mapping[str, str]], *, allowed: bool) -> Finding:
    """Whether a session could open the store, as far as this side can know: what it takes is here and may go there."""
    detail = f"store: sessions have internet and open {url or 'the store'}"
    try:
        given = sorted(secrets())
    except FreeGPUError as error:
        return Finding(name="carry", ok=False, detail=error.message, hint=error.hint)
    except StoreError as error:
        return Finding(name="carry", ok=False, detail=f"what opens the store is not here: {error}")
    if given and not allowed:
        return Finding(
            name="carry",
            ok=False,
            detail=f"{detail}, which takes {', '.join(given)}; they stay here until you allow them to go",
            hint="`--credentials private-dataset` allows it; `--carry sealed` needs none",
        )
    word = f"{', '.join(given)} go there in a private dataset" if given else "no credentials go"
    return Finding(name="carry", ok=None, detail=f"{detail}; {word}")


def ending(*, is_sealed: bool) -> Finding:
    """The plain word on how a session is stopped: said before the first one is started."""
    lost = (
        "; of a session that is still running nothing is published yet, so it loses what it did since it began"
        if is_sealed
        else "; checkpoints are in the store"
    )
    return Finding(
        name="stopping",
        ok=None,
        detail=f"Kaggle ends a session only by deleting its notebook and its output: freegpu fetches them first{lost}",
    )
