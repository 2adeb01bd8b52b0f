"""The hot path of money: holds before a request runs, records while it runs, settlement after it.

Owns usage records, the spool, the dedicated connections of holds and settlement, the reaper of expired holds, and the
rate limiter's token counts of today. Tables: holds, usage_rows with usage_dims, usage_engines, usage_late and
usage_far, settle_errors, unpriced_refusals, reaper_state. Imports no other part of billing (enforced by import-linter).
"""
