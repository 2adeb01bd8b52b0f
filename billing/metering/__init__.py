"""The hot path of money: holds before a request runs, records while it runs, settlement after it.

Owns usage records, the spool, connections reserved for holds and settlement, the reaper of lapsed holds, and the counts
that seed the rate limiter. Tables: holds, usage_rows with usage_dims, usage_engines, usage_late and usage_far,
settle_errors, unpriced_refusals, reaper_state. Imports no other part of billing (enforced by import-linter).
"""
