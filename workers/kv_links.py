"""Links over which KV caches move, in bytes per second and GPU, one way: makers' figures, of which REACHED arrives."""

REACHED = 0.8
"""Share of a link's stated rate that large copies reach, as of HBM's."""
PCIE = 63e9
"""PCI Express 5.0 x16, between a GPU and host memory (PCI-SIG: 32 GT/s, 128b/130b)."""
NETWORK = 50e9
"""400 Gbit/s of network for each GPU, between hosts."""
NVLINK = {"H100": 450e9, "H200": 450e9, "B200": 900e9, "B300": 900e9, "GB200": 900e9}
"""NVLink between the GPUs of a host, by kind of GPU (NVIDIA's data sheets, half of both directions)."""


def token_s(token_bytes: float, gpus: int, link: float) -> float:
    """Seconds of one token's KV cache of `token_bytes` (of all GPUs) over the links of `gpus` GPUs at once."""
    return token_bytes / max(1, gpus) / (REACHED * link)
