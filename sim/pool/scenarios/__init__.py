"""Failure modes that routers shipped, and some of our own, as named runs with something to assert."""
