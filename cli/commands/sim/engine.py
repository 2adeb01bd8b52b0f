"""The part of the simulated engine that the api role needs; imported only when the role starts."""

from sim.engine.tokenizer import SimulatedTokenizer


def simulated_tokenizer() -> SimulatedTokenizer:
    """The tokenizer of simulated engines, which exact prefix matching needs."""
    return SimulatedTokenizer()
