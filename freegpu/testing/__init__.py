"""Shipped aids for proving things: conformance suites, a manual clock, a faulty store, loopback platforms.

The suites (freegpu.testing.suites) need pytest; everything else here needs nothing beyond freegpu itself.
"""
