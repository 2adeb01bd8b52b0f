"""What the gateway costs, beside the direct engine and a bare pass-through in the same run."""
