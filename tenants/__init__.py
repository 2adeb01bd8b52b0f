"""Organisations, projects, members, API keys, limits and the audit log's people."""
