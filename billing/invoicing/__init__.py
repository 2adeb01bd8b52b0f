"""Invoices of a month and corrections of what was billed (docs/finance/invoicing.md).

Tables: invoices, invoice_lines, invoice_numbers, invoice_runs, credit_notes, credit_note_lines, corrections,
correction_lines, commitment_usage, parked_decisions. May import billing.usage, billing.pricing,
billing.notifications, billing.ledger.
"""
