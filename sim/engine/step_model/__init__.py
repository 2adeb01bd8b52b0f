"""How long an engine takes for what: the discrete step model, used by the simulated engine and the simulator."""
