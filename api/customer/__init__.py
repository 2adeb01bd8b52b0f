"""The customer API under /v1. The life of a request begins in hotpath.py."""
