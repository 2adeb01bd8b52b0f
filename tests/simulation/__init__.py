"""Deterministic simulation of the money path: the product's own classes on virtual time (docs/testing.md)."""
