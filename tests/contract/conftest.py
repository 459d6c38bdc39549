"""Servers that several contract tests share, each started on first use and ended with the session."""

from __future__ import annotations

from tests.servers.s3 import moto_fixture, rclone_s3_fixture, seaweed_fixture

__all__ = ["moto_fixture", "rclone_s3_fixture", "seaweed_fixture"]
