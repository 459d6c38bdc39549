"""How work, checkpoints and time go together in one attempt. Pure arithmetic, seconds of a slot."""

from __future__ import annotations

import math

#: checkpoints are not closer together than this
CLOSEST_S = 360.0
#: and this far apart where nobody knows of losses
USUAL_S = 600.0
#: one loss in so long is expected of a platform that was not seen long
PRIOR_S = 12 * 3600.0


def interval(save_s: float, losses: float, exposure_s: float) -> float:
    """Time between checkpoints by Young's rule (1974) from what is believed of a platform's losses."""
    if save_s <= 0 or math.isinf(exposure_s):
        return USUAL_S
    return max(CLOSEST_S, math.sqrt(2 * save_s * (PRIOR_S + exposure_s) / (1 + losses)))


def whole(work_s: float, every_s: float, save_s: float) -> float:
    """How long it takes to do this much work, with the checkpoints on the way."""
    saves = max(0, math.ceil(work_s / every_s - 1e-9) - 1)
    return work_s + saves * save_s


def after(elapsed_s: float, every_s: float, save_s: float) -> tuple[float, float]:
    """(worked, of it saved) after so long."""
    if elapsed_s <= 0:
        return 0.0, 0.0
    cycle = every_s + save_s
    full = math.floor(elapsed_s / cycle)
    worked = full * every_s + min(every_s, elapsed_s - full * cycle)
    return worked, full * every_s
