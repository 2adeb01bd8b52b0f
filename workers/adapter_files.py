"""What the files of a LoRA adapter have to be, as PEFT writes them. Nothing of them is run. Pure.

`adapter_config.json` says what the weights change; the header of `adapter_model.safetensors` lists them with their
shapes (https://huggingface.co/docs/safetensors, "Format"). Engines check the shapes against their model when they load.
"""

import re
from typing import BinaryIO

import msgspec

from core.errors import InvalidRequest

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_CONFIG_BYTES = 64 * 1024
MAX_HEADER_BYTES = 8 * 1024 * 1024
MAX_RANK = 512
"""vLLM's largest `--max-lora-rank`."""
_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header, little-endian."""
_PAIR = re.compile(r"base_model\.model\.(.+)\.(lora_A|lora_B|lora_embedding_A|lora_embedding_B)(\.weight)?")
_DTYPES = frozenset({"F32", "F16", "BF16"})


class _Config(msgspec.Struct):
    peft_type: str
    r: int
    target_modules: list[str] | str | None = None
    modules_to_save: list[str] | None = None
    bias: str = "none"
    use_dora: bool = False
    rank_pattern: dict[str, int] = {}


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def check_config(raw: bytes) -> int:
    """The rank of an adapter by its configuration: the largest of any module.

    Raises InvalidRequest for another kind of adapter than LoRA, and for what vLLM cannot load.
    """
    if len(raw) > MAX_CONFIG_BYTES:
        raise _invalid(
            f"{CONFIG} has {len(raw):,} bytes, at most {MAX_CONFIG_BYTES:,} are accepted", "config"
        )
    try:
        config = msgspec.json.decode(raw, type=_Config)
    except msgspec.MsgspecError as error:
        raise _invalid(f"{CONFIG} cannot be read: {error}", "config") from None
    problems = (
        (config.peft_type != "LORA", f"its peft_type is {config.peft_type[:40]!r}, and must be 'LORA'"),
        (bool(config.modules_to_save), "it has modules_to_save, which engines cannot load"),
        (config.bias != "none", f"its bias is {config.bias[:40]!r}, and must be 'none'"),
        (config.use_dora, "it uses DoRA, which engines cannot load"),
    )
    for wrong, why in problems:
        if wrong:
            raise _invalid(f"{CONFIG}: {why}", "config")
    rank = max([config.r, *config.rank_pattern.values()])
    if not 1 <= rank <= MAX_RANK:
        raise _invalid(f"{CONFIG}: its rank is {rank}, and must be 1 to {MAX_RANK}", "config")
    return rank


def check_weights(file: BinaryIO, size: int, rank: int) -> None:
    """Check the header of the weights, of `size` bytes, against the rank of the configuration.

    Raises InvalidRequest. Reads from the beginning of the file; its position is another one afterwards.
    """
    file.seek(0)
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if size < _LENGTH_BYTES or not 2 <= length <= min(MAX_HEADER_BYTES, size - _LENGTH_BYTES):
        raise _invalid(f"{WEIGHTS} is no safetensors file", "weights")
    try:
        header = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        tensors = {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in header.items()}
    except msgspec.MsgspecError as error:
        raise _invalid(f"the header of {WEIGHTS} cannot be read: {error}", "weights") from None
    if not tensors:
        raise _invalid(f"{WEIGHTS} has no weights", "weights")
    room = size - _LENGTH_BYTES - length
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, rank, room)


def _check_tensor(name: str, tensor: _Tensor, rank: int, room: int) -> None:
    found = _PAIR.fullmatch(name)
    begin, end = tensor.data_offsets
    if found is None:
        raise _invalid(f"{WEIGHTS} has {name[:120]!r}, which is no weight of a LoRA adapter", "weights")
    if tensor.dtype not in _DTYPES or len(tensor.shape) != 2 or min(tensor.shape) < 1:
        raise _invalid(
            f"{name[:120]} is {tensor.dtype[:20]} with the shape {tensor.shape[:8]}; it must be a matrix of F32, F16 "
            "or BF16",
            "weights",
        )
    wide = tensor.shape[0 if found[2].endswith("_A") else 1]
    if wide > rank:
        raise _invalid(f"{name[:120]} has the rank {wide}, and {CONFIG} says {rank}", "weights")
    width = 4 if tensor.dtype == "F32" else 2
    if not 0 <= begin <= end <= room or end - begin != tensor.shape[0] * tensor.shape[1] * width:
        raise _invalid(f"the place of {name[:120]} in {WEIGHTS} does not fit its shape", "weights")


def _invalid(text: str, param: str) -> InvalidRequest:
    return InvalidRequest(text, param=param)
