"""Studies that choose how engines are started: step size, KV cache in host memory, prefill apart from decode."""
