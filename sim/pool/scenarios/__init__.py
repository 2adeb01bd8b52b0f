"""Failure modes of published routers, and further ones, as named simulator runs with assertions."""
