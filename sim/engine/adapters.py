"""LoRA adapters of a simulated engine: it asks for unknown ones as vLLM does, and answers differently with each."""

import hashlib
from pathlib import Path

from workers.engine_adapters import ask_agent


class Adapters:
    """The adapters that the engine knows."""

    def __init__(self, most: int) -> None:
        """`most`: adapters of one batch; 0 = the engine takes none."""
        self._takes_any = most > 0
        self._seeds: dict[str, int] = {}

    async def seed_of(self, name: str) -> int | None:
        """What an adapter's content makes of the seed of answers; None when there is none of this name.

        Raises RuntimeError, OSError and TimeoutError as `ask_agent`, and ValueError for a directory without weights.
        """
        if (known := self._seeds.get(name)) is not None:
            return known
        path = await ask_agent(name) if self._takes_any else None
        if path is None:
            return None
        try:
            weights = (Path(path) / "adapter_model.safetensors").read_bytes()
        except OSError as error:
            raise ValueError(f"LoRA adapter '{name}' was found but could not be loaded.") from error
        seed = int.from_bytes(hashlib.sha256(weights).digest()[:4], "big")
        self._seeds[name] = seed
        return seed

    def forget(self, name: str) -> bool:
        """Unload an adapter; False when it is not known. Requests that run keep it."""
        return self._seeds.pop(name, None) is not None
