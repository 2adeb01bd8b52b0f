"""The discrete step-time model of an engine, used by the simulated engine and by the pool simulator."""
