"""Random faults on a whole platform under load, then its books (`make chaos`)."""
