"""What the api role needs of the simulated engine, imported only where a role starts."""

from sim.engine.tokenizer import SimulatedTokenizer


def simulated_tokenizer() -> SimulatedTokenizer:
    """The tokenizer of simulated engines, so that exact prefix matching works on them too."""
    return SimulatedTokenizer()
