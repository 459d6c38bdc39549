"""SkyPilot itself for tests, as a witness of how it reads a task file. It is large: about 460 MB and a minute.

Its dependencies are held to the versions that were seen to work: an oracle that a stranger's release can
break proves nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.servers.ahead import Ahead

SKYPILOT = Ahead(
    folder="skypilot",
    package="skypilot",
    version="0.14.1",
    called="SkyPilot",
    wanted_by="the comparisons with SkyPilot",
    lowest=(3, 11),
    constraints=Path(__file__).with_name("skypilot-constraints.txt"),
)
_ORACLE = Path(__file__).with_name("skypilot_oracle.py")


def ask(question: Mapping[str, Any], folder: Path) -> Any:
    """What SkyPilot makes of all files of a question at once. It sees `folder` as its home, and no network.

    Skips the test, or fails it in CI, where SkyPilot was not installed ahead.
    """
    python = SKYPILOT.path("python")
    done = subprocess.run(
        [python, "-I", str(_ORACLE)],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        cwd=folder,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(SKYPILOT.main())
