"""Runs a queue forward over platforms as data: what a policy would do, and what would come of it. Pure."""

from freegpu.orchestrator.forecast.engine import Policy, run
from freegpu.orchestrator.forecast.world import (
    Job,
    Outcome,
    Platform,
    Pool,
    Result,
    Run,
    Stay,
    WindowUse,
    World,
    used_evenly,
)

__all__ = [
    "Job",
    "Outcome",
    "Platform",
    "Policy",
    "Pool",
    "Result",
    "Run",
    "Stay",
    "WindowUse",
    "World",
    "run",
    "used_evenly",
]
