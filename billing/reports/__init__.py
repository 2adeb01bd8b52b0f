"""Reports: usage with cost and margin, comparison of periods, margin bridge, activity, money health.

Owns no table; every figure comes from usage, ledger and GPU cost. May import billing.usage and what lies below it.
"""
