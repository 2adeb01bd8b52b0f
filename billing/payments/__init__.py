"""Stripe: what customers pay, and the reconciliation of Stripe with the books (docs/finance/stripe.md).

Tables: stripe_*. Only stripe_gateway.py imports the stripe package. May import
billing.notifications and billing.ledger.
"""
