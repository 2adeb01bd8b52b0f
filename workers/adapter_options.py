"""The arguments of profiles that concern LoRA adapters, by vLLM's names."""

from workers.catalog import CatalogModel, EngineProfile

USUAL_ADAPTERS, USUAL_RANK = 1, 16
"""vLLM's own `--max-loras` and `--max-lora-rank`."""


def max_adapters(profile: EngineProfile) -> int:
    """Adapters that one batch of an engine may use; 0 = it takes none."""
    if profile.args.get("enable-lora") is not True:
        return 0
    stated = profile.args.get("max-loras", USUAL_ADAPTERS)
    return stated if isinstance(stated, int) else USUAL_ADAPTERS


def largest_rank(model: CatalogModel) -> int:
    """The highest rank of an adapter that all engines of a model which take adapters can load; 0 = none takes any."""
    stated = [
        profile.args.get("max-lora-rank", USUAL_RANK)
        for profile in model.profiles.values()
        if max_adapters(profile)
    ]
    return min((rank for rank in stated if isinstance(rank, int)), default=0)
