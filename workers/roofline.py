"""Capacity figures of a model without measurements, from its shape and the data sheet of its GPUs.

A step takes as long as the slower of arithmetic and memory, each at a share of its peak that engines were seen to reach
(the roofline model: Williams, Waterman, Patterson, CACM 52(4), 2009). With N GPUs of F floating-point operations and W
bytes a second each, A weights that a token is multiplied by, and 2 A operations for it (Kaplan et al., arXiv
2001.08361, section 2.1):

    R      = N F e / (2 A)                             prompt tokens a second; e = 0.45 dense, 0.07 with experts
    q      = 4 layers heads dim / (N F16 / 2)          seconds a pair of tokens, in 16-bit arithmetic
    alpha  = bytes of weights per GPU / (0.8 W) + 2 layers 10 us with tensor parallelism (all-reduces); with experts, of
             the weights outside of them, and at least 0.12 ms a layer (launches)
    W(all) = bytes of experts / (N 0.8 W)
    beta   = 1 / R                                     the arithmetic of one more token a step
    gamma  = bytes of a token's KV per GPU / (0.8 W)
    h      = 28 ms                                     a request beside its steps

The shares and floors are those of the fits of the catalog's models (docs/simulator.md). The scheduler learns R, alpha,
beta and h of every replica from its requests.
"""

from datetime import date

import msgspec

from workers.catalog import Figure, HostKind
from workers.model_config import BYTES, ModelShape

HBM_SHARE = 0.8
DENSE_SHARE, EXPERT_SHARE = 0.45, 0.07
"""Share of the peak arithmetic that prefill reaches. FP4 is counted as FP8: its peak does not carry over."""
ATTENTION_SHARE = 0.5
ALL_REDUCE_S = 10e-6
LAYER_S = 0.12e-3
REQUEST_S = 0.028
KV_SHARE = 0.9
"""Share of the memory beside the weights that is left to the KV cache; the rest is for activations and graphs."""
CPU_FLOPS, CPU_BYTES_PER_S = 0.9e12, 20e9
"""Of a machine without GPUs: about two cores, by what qwen2.5-0.5b is assumed to reach there."""
CPU_KV_BYTES = 1 << 30


class Gpu(msgspec.Struct, frozen=True):
    """Peak figures of a GPU: dense operations a second, bytes of memory a second, and of NVLink one way."""

    flops_16: float
    flops_8: float
    bytes_per_s: float
    link_bytes_per_s: float = 0.0


GPUS = {
    "H100": Gpu(0.99e15, 1.98e15, 3.35e12, 450e9),
    "H200": Gpu(0.99e15, 1.98e15, 4.8e12, 450e9),
    "MI300X": Gpu(1.31e15, 2.61e15, 5.3e12),
    "B200": Gpu(2.25e15, 4.5e15, 7.7e12, 900e9),
    "GB200": Gpu(2.5e15, 5.0e15, 8.0e12, 900e9),
    "B300": Gpu(2.25e15, 4.5e15, 7.75e12, 900e9),
}
"""From the vendors' data sheets, SXM or OAM modules, without sparsity."""
CPU = Gpu(CPU_FLOPS, CPU_FLOPS, CPU_BYTES_PER_S)


class Layout(msgspec.Struct, frozen=True):
    """How an engine is spread over its GPUs, and what it is told."""

    gpus: int
    """0 = a machine without GPUs."""
    tensor_parallel: int
    ranks: int
    """Ranks of attention data parallelism."""
    expert_parallel: bool
    kv_bytes: float
    """Bytes of a number in the KV cache."""
    memory_share: float
    """Share of the GPU's memory that the engine may use."""


class Estimate(msgspec.Struct, frozen=True):
    """What a layout makes of a model."""

    figures: dict[str, Figure]
    weights_per_gpu: int
    """Bytes."""
    kv_per_gpu: float
    """Bytes that one token leaves in the cache of one GPU."""
    memory_per_gpu: float
    """Bytes of a GPU that the engine may use."""


def estimate(
    shape: ModelShape, host: HostKind, layout: Layout, weight_bytes: int, max_num_seqs: int, day: date
) -> Estimate:
    """The figures of a model on a kind of host. `weight_bytes` 0 = computed from the shape.

    A KV cache without room has the figure 0; a kind of GPU that GPUS does not have raises KeyError.
    """
    gpu = GPUS[host.gpu] if layout.gpus else CPU
    count = max(layout.gpus, 1)
    total, experts = _weight_bytes(shape, weight_bytes)
    other = total - experts
    spread = count if layout.expert_parallel else layout.tensor_parallel
    per_gpu = int(experts / spread + other / layout.tensor_parallel)
    kv_per_gpu = shape.kv_numbers(layout.tensor_parallel) * layout.kv_bytes
    memory = host.gpu_memory_gb * 1e9 * layout.memory_share if layout.gpus else float(CPU_KV_BYTES + per_gpu)
    room = (memory - per_gpu) * (KV_SHARE if layout.gpus else 1.0)
    kv_tokens = layout.ranks * max(0, int(room / kv_per_gpu))
    arithmetic = gpu.flops_8 if BYTES[shape.weights] <= 1 else gpu.flops_16
    reached = count * arithmetic * (EXPERT_SHARE if shape.experts else DENSE_SHARE)
    prefill = reached / (2 * shape.active_weights)
    memory_s = HBM_SHARE * gpu.bytes_per_s if layout.gpus else gpu.bytes_per_s
    reduces = 2 * shape.layers * ALL_REDUCE_S if layout.tensor_parallel > 1 else 0.0
    base = other / layout.tensor_parallel / memory_s + reduces
    values = {
        "prefill_tokens_per_s": _round(prefill),
        "prefill_pair_s": _round(
            4 * shape.kv_layers * shape.heads * shape.head_dim / (count * gpu.flops_16 * ATTENTION_SHARE)
        ),
        "request_s": REQUEST_S if layout.gpus else 0.0,
        "step_base_s": _round(max(base, LAYER_S * shape.layers) if shape.experts and layout.gpus else base),
        "step_per_seq_s": _round(1.0 / prefill),
        "step_per_kv_token_s": _round(kv_per_gpu / layout.ranks / memory_s),
        "max_num_seqs": float(max_num_seqs * layout.ranks),
        "kv_cache_tokens": float(kv_tokens),
        "kv_token_bytes": float(int(kv_per_gpu * layout.tensor_parallel)),
    }
    if shape.experts:
        values["step_experts_s"] = _round(experts / count / memory_s)
    where = f"{layout.gpus} x {host.gpu}" if layout.gpus else "a machine without GPUs"
    source = f"roofline of config.json on {where} (workers/roofline.py), until it is learnt"
    return Estimate(
        {name: Figure(value, "computed", day, source) for name, value in values.items()},
        per_gpu,
        kv_per_gpu,
        memory,
    )


def _weight_bytes(shape: ModelShape, stated: int) -> tuple[int, int]:
    """Bytes of all weights, and of the routed experts among them, in proportion where the sum is stated."""
    # Embeddings and what is not a matrix stay in the activations' format; only experts and projections are quantized.
    embeddings = (1 if shape.tied else 2) * shape.vocabulary * shape.hidden
    experts = shape.expert_weights * BYTES[shape.weights]
    total = (
        experts + (shape.other_weights - embeddings) * BYTES[shape.weights] + embeddings * BYTES[shape.dtype]
    )
    scale = stated / total if stated else 1.0
    return int(total * scale), int(experts * scale)


def _round(value: float) -> float:
    """Three significant digits: more would claim a precision that is not there."""
    return float(f"{value:.3g}")
