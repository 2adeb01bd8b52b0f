"""Simulators: a vLLM engine, a pool of them, Stripe and DigitalOcean. What they return is marked as simulated."""
