"""The scheduler benchmark: the cost of one decision, by number of replicas, cached blocks and prompt length."""
