"""Asking why, as a user types it: real sessions on loopback platforms, a queue in front of them."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow

WEEK = {"kind": "fixed_weekly", "limit_s": 36000}


def test_a_queue_explains_itself_from_submission_to_the_report(user: Any) -> None:
    """The running job by its record, those that wait by who is in their way and what helps, and all of it in status."""
    user.settings(
        {
            "fast": {"card": "L4", "window": WEEK, "max_concurrent": 1},
            "slow": {"card": "T4", "window": WEEK, "max_concurrent": 1},
        }
    )
    user.ok("submit", user.counter(total=20, hold=10, extra="estimate: 29m on L4"))
    user.until(lambda: user.job("count")["job"]["state"] == "active" and user.ok("tick"))
    ran = user.ok("why", "count").out
    assert "What the decision saw that placed" in ran
    taken = next(line for line in ran.splitlines() if line.startswith(">"))
    assert "L4" in taken
    assert "10 h ->" in taken
    assert any("slow" in line and "T4" in line for line in ran.splitlines())
    assert "What holds now" not in ran
    now = user.ok("why", "count", "--now", "--json").json["data"]
    assert now["placed"]["scores"][0]["chosen"] is True
    assert now["now"]["outcome"] in ("placed", "waits")

    user.ok("submit", user.counter(total=20, hold=10, name="other", extra="estimate: 40m on T4"))
    user.ok("submit", user.counter(name="huge", extra="vram: 20+"))
    dry = user.ok("submit", user.counter(name="more"), "--dry-run").out
    assert "Where more could go" in dry
    assert "What would be sent" not in dry, "both platforms are taken"
    waits = user.ok("why", "huge").out
    assert "huge waits: no place can take it now" in waits
    assert "fast L4: 1 of 1 session open: count" in waits
    assert "slow T4: needs 20 GB, the card has 16 GB" in waits
    assert "`vram: 16+` would let it in" in waits
    told = {job["name"]: job for job in user.ok("status", "--json").json["data"]["jobs"]}
    assert told["count"]["reason"].startswith("29 min expected; next best slow T4 ")
    assert "fast: 1 of 1 session open" in told["huge"]["reason"]

    user.go()
    user.until_job("count", "succeeded")
    assert "What the decision saw that placed" in user.ok("why", "count").out
    report = user.ok("report", "--json").json["data"]
    assert report["t4_s"] > 0
    assert isinstance(report["savings"], list)
