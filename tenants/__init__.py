"""Organisations, projects, users, API keys, rate limits and the audit log."""
