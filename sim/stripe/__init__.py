"""A local stand-in for Stripe: answers its API with state, virtual time and webhooks. SIMULATED, it moves no money."""
