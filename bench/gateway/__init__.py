"""The gateway benchmark: its cost beside the direct engine and a bare pass-through in the same run."""
