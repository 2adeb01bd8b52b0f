"""How the autoscaler's plan becomes hosts: what the scheduler stores, and what is decided from it."""
