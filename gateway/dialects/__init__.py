"""Other APIs' forms of a chat request and its answer. Each is a package; the engine side stays chat (docs/adr/0039)."""
