"""The life of one request: admit, place, relay, settle."""
