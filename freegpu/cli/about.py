"""`schema` and `version`: what needs neither a home nor a ledger."""

from __future__ import annotations

import platform
import sys

from freegpu import __version__
from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.plain import VERSION


@command("version", example="freegpu version --json")
def version(call: Call) -> Result:
    """Print the version."""
    data = {
        "freegpu": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "envelope": VERSION,
    }
    return Result(data=data, show=lambda out: out.line(f"freegpu {__version__}"))


@command("schema", example="freegpu schema > job.schema.json")
def schema(call: Call) -> Result:
    """Print the JSON Schema of a job spec, for editors.

    Without --json it is the bare schema; with --json it is the `data` of the envelope.
    """
    from freegpu.jobs import schema as job_schema

    document = job_schema.schema()
    return Result(data=document, show=lambda out: out.document(document))
