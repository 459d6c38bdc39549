"""Which of its own checkpoints an agent may delete. Arithmetic only; who verified them it is told."""

from __future__ import annotations

from typing import Iterable, List

#: unacknowledged generations in the store at most
_MOST_AHEAD = 8


def surplus(
    there: Iterable[int], committed: Iterable[int], *, acknowledged: int, keep: int
) -> List[int]:
    """The generations to delete of those that are `there`, oldest first.

    Never the newest two, nor the `keep` newest acknowledged ones (at least one). Of those that nobody has
    acknowledged eight stay: the oldest, the newest two, and others ever closer together towards the new end.
    `committed`: those that were announced; another one is an attempt at writing that was given up.
    """
    announced = set(committed)
    present = sorted(there)
    live = [generation for generation in present if generation in announced]
    safe = set(live[-2:])
    confirmed = [generation for generation in live if generation <= acknowledged]
    safe.update(confirmed[-max(1, keep) :])
    ahead = [generation for generation in live if generation > acknowledged]
    while len(ahead) > _MOST_AHEAD:
        newest = ahead[-1]
        crowded = min(
            range(1, len(ahead) - 2),
            key=lambda i: (ahead[i + 1] - ahead[i - 1]) / (newest - ahead[i]),
        )
        del ahead[crowded]
    safe.update(ahead)
    newest_live = live[-1] if live else 0
    return [g for g in present if g not in safe and g < newest_live]
