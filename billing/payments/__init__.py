"""Stripe: purchases, payments, refunds, disputes, invoices sent, and their reconciliation (docs/finance/stripe.md).

Tables: stripe_*. Only stripe_transport.py imports the stripe package. May import billing.notifications and
billing.ledger.
"""
