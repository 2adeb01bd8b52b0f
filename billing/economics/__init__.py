"""What GPU hosts cost, and whether engines, books and providers' invoices agree.

Tables: usage_unbilled, reconciliations, provider_invoices, provider_invoice_lines; reads the host and engine tables of
workers/. May import billing.notifications and billing.ledger.
"""
