"""Decide, record, act: the ledger, the quota arithmetic, placement, and the tick that drives them."""
