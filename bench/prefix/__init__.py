"""Exact prefix knowledge beside the mirror: what each costs, and what each finds on two real engines."""
