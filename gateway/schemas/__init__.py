"""Dialects of the customer API: what may be asked, and the fresh engine body that is built from it."""
