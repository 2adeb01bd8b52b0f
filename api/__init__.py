"""Binds HTTP: customer endpoints, admin REST, error mapping."""
