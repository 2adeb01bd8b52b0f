"""Clients that leave at random instants: no byte of one answer appears in another, and each request is billed once."""
