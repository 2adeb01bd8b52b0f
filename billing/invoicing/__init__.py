"""Invoices, the close of a month, and corrections of what was billed (docs/finance/invoicing.md)."""
