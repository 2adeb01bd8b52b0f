"""Request fields that vLLM understands and that no customer may pass on: they would break isolation between tenants."""

ENGINE_HINTS = ("cache_salt", "priority", "request_id", "session_id")
"""Refused where the answer would not keep what they promise, dropped otherwise."""
