"""Serves one inference request: admission, placement, relay and settlement. The life of a request is in director.py."""
