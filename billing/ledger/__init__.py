"""The double-entry ledger and what is booked into it.

Owns accounts, transfers and their hash chain (seals), journal and trial balance, credit lots, adjustments, approvals,
and the calendar of accounting months. Tables: billing_accounts, ledger_accounts, ledger_transfers, ledger_unsealed,
ledger_seals, billing_periods, credit_grants, grant_draws, adjustments, approvals. Imports no other part of billing.
"""
