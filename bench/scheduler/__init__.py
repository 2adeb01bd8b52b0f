"""What one scheduling decision costs, and how that grows with replicas, cached blocks and prompts."""
