"""Prices, holds, the ledger, usage and the report."""
