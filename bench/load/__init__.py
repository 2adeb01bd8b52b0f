"""Sustained load on a whole platform (`make load`)."""
