"""The JSON Schema of a job spec, for editors: made from the table that the parser reads by."""

from __future__ import annotations

from typing import Any

from freegpu.jobs.table import ROOT

__all__ = ["schema"]


def schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12. It checks shapes; what fields mean together only the parser knows."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "freegpu job spec",
        "description": "SkyPilot's task YAML for one machine, plus the section freegpu.",
        **ROOT.schema(),
    }
