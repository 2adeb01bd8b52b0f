"""The close of an accounting month: the checklist, the state machine, and the cross-check of all books.

Owns the status and checklist columns of billing_periods. May import every other part of billing.
"""
