"""Signed documents for customers: monthly statements, receipts, and credits for missed service levels.

Tables: statements, signing_keys, sla_credits. May import billing.usage, billing.pricing, billing.notifications and
billing.ledger.
"""
