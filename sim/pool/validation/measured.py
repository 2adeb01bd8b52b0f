"""A measured run of a real engine: when each request was sent and when its tokens arrived."""

import gzip
from pathlib import Path

import msgspec

from core.errors import InvalidRequest
from sim.engine.step_model.job import Job

CARRIED = Path(__file__).with_name("data") / "vllm-cpu.json.gz"
"""Path of the shipped measurement: vLLM 0.32 with penstock/tiny on two CPU cores, by bench/engine."""
MAX_BYTES = 64 * 1024 * 1024
"""Maximum size of a measurement in bytes after decompression."""


class MeasuredRequest(msgspec.Struct, frozen=True):
    """One request, times in seconds from the start of its load."""

    at: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    ttft_s: float
    e2e_s: float
    prefix: int = -1
    """Number of the shared prefix that the prompt begins with; -1 = none."""
    prefix_tokens: int = 0

    @property
    def tpot_s(self) -> float:
        """Mean seconds per output token after the first."""
        return (self.e2e_s - self.ttft_s) / max(1, self.output_tokens - 1)


class MeasuredLoad(msgspec.Struct, frozen=True):
    """One arrival pattern and its measured requests."""

    name: str
    rate: float
    """Average offered requests per second."""
    requests: list[MeasuredRequest]


class Measurement(msgspec.Struct, frozen=True):
    """All loads against one engine."""

    engine: str
    """Name and version of the engine."""
    model: str
    machine: str
    date: str
    max_num_seqs: int
    max_batched_tokens: int
    block_size: int
    kv_blocks: int
    max_model_len: int
    loads: list[MeasuredLoad]

    def jobs(self, load: MeasuredLoad) -> list[Job]:
        """Return the load's requests as jobs of the step model; equal prefixes have equal hashes."""
        size = self.block_size
        jobs = []
        for key, request in enumerate(load.requests):
            whole = request.prefix_tokens // size if request.prefix >= 0 else 0
            blocks = [(request.prefix + 1) * 1_000_003 + index for index in range(whole)]
            jobs.append(
                Job(key, request.prompt_tokens, request.output_tokens, blocks=blocks, block_tokens=size)
            )
        return jobs


def read_measurement(path: Path) -> Measurement:
    """Return a measurement that `python -m bench.engine` wrote, gzipped or not. Raises InvalidRequest for any
    other file.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as source:
            raw = source.read(MAX_BYTES + 1)
    except (OSError, EOFError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}", param="measured") from None
    if len(raw) > MAX_BYTES:
        raise InvalidRequest(f"{path} is larger than {MAX_BYTES:,} bytes", param="measured")
    try:
        return msgspec.json.decode(raw, type=Measurement)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{path} is not a measurement: {error}", param="measured") from None
