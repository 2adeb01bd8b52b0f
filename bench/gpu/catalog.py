"""Engine profiles of penstock/tiny for a GPU, which the packaged catalog has not: no customer uses the model there."""

import msgspec

from workers.catalog import ArgValue, Catalog, EngineProfile, Figure
from workers.plan import TINY

SMALL, LARGER = "gpu", "gpu-1b"
"""Names of the profiles: the model as it is, and one of 1.2 billion weights in its place."""
BLOCKS = 8192
"""KV blocks of 32 tokens: enough for the largest point of the sweep (25 GB of the larger model), and few beside the
millions that the toy's small tokens would fill a GPU with."""
_COMMON: dict[str, ArgValue] = {
    "max-num-seqs": 64,
    "block-size": 32,
    "num-gpu-blocks-override": BLOCKS,
    "dtype": "bfloat16",
    "enable-prefix-caching": True,
    "enable-prompt-tokens-details": True,
    "shutdown-timeout": 30,
}
_LARGER_SHAPE: dict[str, bool | int | float | str] = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
"""Each decode step reads 2.4 GB of weights, so that memory bandwidth decides, as with real models."""


def with_gpu_profiles(catalog: Catalog, host_kind: str) -> Catalog:
    """The catalog with both profiles of penstock/tiny for one GPU of a host of `host_kind`.

    The larger model's weights are random ones that the engine makes itself (`load-format=dummy`): no file, no download.
    """
    model = catalog.models[TINY]
    plain = model.profile("")
    figures = {**plain.figures, "max_batched_tokens": _figure(plain, 8192)}
    profiles = {
        SMALL: {**_COMMON, "max-model-len": 32768, "enable-sleep-mode": True},
        LARGER: {**_COMMON, "max-model-len": 8192, "load-format": "dummy", "hf-overrides": _LARGER_SHAPE},
    }
    made = {
        name: msgspec.structs.replace(
            plain, name=name, host_kind=host_kind, gpus=1, args=args, env={}, figures=figures
        )
        for name, args in profiles.items()
    }
    changed = msgspec.structs.replace(model, profiles={**model.profiles, **made})
    return msgspec.structs.replace(catalog, models={**catalog.models, TINY: changed})


def _figure(profile: EngineProfile, value: float) -> Figure:
    return msgspec.structs.replace(profile.figures["max_batched_tokens"], value=value)
