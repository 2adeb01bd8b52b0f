"""One function = one administrative act = one transaction = one audit row."""
