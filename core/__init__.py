"""Shared kernel without business rules; every other package may import it."""
