"""Platforms: each gives a machine for a while. Adapters know nothing about jobs."""
