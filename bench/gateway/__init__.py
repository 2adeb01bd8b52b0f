"""The gateway benchmark: the whole platform beside the bare engine, a pass-through and other gateways in one run."""
