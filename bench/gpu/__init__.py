"""`make gpu`: what only a machine with a GPU can show, measured into one JSON file (docs/gpu.md)."""
