"""Why an attempt ended, in the words of its last event.

The reasons that an agent can give; freegpu.jobs.lifecycle.EndReason is the whole list. A module of its own,
because an agent that has no ticket yet need not load all that an attempt is made of.
"""

from __future__ import annotations

COMPLETED, COMMAND_FAILED, RESUME_REQUESTED = "completed", "command_failed", "resume_requested"
CANCELLED, PREEMPTED, SUPERSEDED = "cancelled", "preempted", "superseded"
SESSION_EXPIRED = "session_expired"
