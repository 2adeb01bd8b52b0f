"""Money and tokens, in walled parts; each package says what it owns, its tables and what it may import."""
