"""Stripe: what customers pay, and how our books and Stripe stay equal (docs/finance/stripe.md)."""
