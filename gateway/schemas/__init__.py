"""Requests of the customer API: validation against an allow-list, and the engine body built from it."""
