"""Shared kernel: knows no business, imported by every other package."""
