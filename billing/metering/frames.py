"""The format of a spool file: a header, then self-contained frames.

    file   = "PENSPOOL" u32 version, u32 zero, then frames, then zeros up to the preallocated size
    frame  = u32 magic, u32 length of payload, u32 CRC-32 of what follows, u64 Unix milliseconds, payload
    payload = msgpack of OpenRecord, Checkpoint or UsageRecord (tagged)

All integers are little-endian. A torn or damaged frame fails its checksum and is skipped: reading continues at the next
magic number. So a torn tail loses the last record, a flipped bit loses one record, and reading never raises.
"""

import struct
import zlib
from collections.abc import Iterator

import msgspec

from billing.metering.records import Checkpoint, OpenRecord, UsageRecord

Record = OpenRecord | Checkpoint | UsageRecord
Buffer = bytes | bytearray | memoryview

FILE_HEADER = b"PENSPOOL" + struct.pack("<II", 1, 0)
MAGIC = b"\xf5PN\x01"
MAX_PAYLOAD = 1 << 16

_HEAD = struct.Struct("<4sIIQ")
_PREFIX = struct.Struct("<4sII")
"""The head without its timestamp, which the checksum covers."""
_TIMESTAMP = struct.Struct("<Q")
FRAME_OVERHEAD = _HEAD.size

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One sound record and its position in the file, in bytes."""

    offset: int
    size: int
    """Length of the frame with its header."""
    at_ms: int
    """Unix milliseconds of the write, by the clock of the writing host."""
    record: Record


def encode(record: Record, at_ms: int) -> bytes:
    """The frame of a record written at `at_ms`. Raises ValueError when the payload is above MAX_PAYLOAD bytes."""
    payload = _encoder.encode(record)
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"a spool record of {len(payload)} bytes is above {MAX_PAYLOAD}")
    stamped = _TIMESTAMP.pack(at_ms) + payload
    return _PREFIX.pack(MAGIC, len(payload), zlib.crc32(stamped)) + stamped


def decode_at(data: Buffer, offset: int) -> Frame | None:
    """The frame at `offset`, or None when there is no complete and sound one."""
    if offset + FRAME_OVERHEAD > len(data):
        return None
    magic, length, checksum, at_ms = _HEAD.unpack_from(data, offset)
    end = offset + FRAME_OVERHEAD + length
    if magic != MAGIC or length > MAX_PAYLOAD or end > len(data):
        return None
    payload = bytes(data[offset + FRAME_OVERHEAD : end])
    if zlib.crc32(payload, zlib.crc32(_TIMESTAMP.pack(at_ms))) != checksum:
        return None
    try:
        record = _decoder.decode(payload)
    except msgspec.DecodeError:
        return None
    return Frame(offset, end - offset, at_ms, record)


def parse(data: Buffer) -> Iterator[Frame]:
    """Every sound frame of a file's bytes, in order; damaged bytes between frames are skipped."""
    blob = data if isinstance(data, bytes) else bytes(data)
    at = len(FILE_HEADER)
    while (at := blob.find(MAGIC, at)) >= 0:
        frame = decode_at(blob, at)
        if frame is None:
            at += 1
            continue
        yield frame
        at += frame.size
