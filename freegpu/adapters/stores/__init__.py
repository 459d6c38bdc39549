"""Stores that only the orchestrator reaches: their agents see the same tree another way."""
