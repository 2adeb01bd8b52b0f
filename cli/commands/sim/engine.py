"""What the api role needs of the simulated engine, imported only where a role starts."""

from sim.engine.prompt_tokens import SimTokens


def simulated_tokens() -> SimTokens:
    """The tokenizer of simulated engines, so that exact prefix matching works on them too."""
    return SimTokens()
