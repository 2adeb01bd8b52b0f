"""Settled usage as data: hourly and daily sums, the request list, GPU shares, archived months.

Tables: dirty_hours, usage_hours, usage_days, usage_day_state, usage_archives. Reads the rows that billing.metering
writes. May import billing.economics, billing.ledger and billing.metering.
"""
