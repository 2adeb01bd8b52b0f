"""Which files of a model an engine needs, and whether the cached ones are whole.

A snapshot in the hub's cache layout gets a manifest beside it, `models--ORG--NAME/penstock/COMMIT.json`, once every
file has matched the checksum that the hub states: the SHA-256 of large files, git's SHA-1 of the others.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

import msgspec

_CHUNK = 1 << 20
_COMMIT_LENGTH = 40
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_OTHER_FORMATS = (".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack", ".ot")
"""The same weights in other formats, which vLLM does not read where there are safetensors."""


_INDEXES = {".safetensors": "model.safetensors.index.json", ".bin": "pytorch_model.bin.index.json"}
"""Formats that vLLM loads, the first one that is there, and the file that names the parts of a model with several."""


class WeightsFile(msgspec.Struct, frozen=True):
    """A file of a model's revision, as the hub describes it."""

    path: str
    size: int
    digest: str
    """64 hexadecimal digits = SHA-256 of the content; 40 = SHA-1 of git's blob. It is the name of the cached blob.
    Empty = not known: only the size is compared."""


class KnownFile(msgspec.Struct, frozen=True):
    """A file whose checksum was right, and its modification time then."""

    file: WeightsFile
    mtime_ns: int


class Manifest(msgspec.Struct, frozen=True):
    """A snapshot whose files have all matched their checksums."""

    repo: str
    commit: str
    files: list[KnownFile]


class PrefetchLine(msgspec.Struct, omit_defaults=True):
    """One line that the process of a prefetch writes."""

    stage: str = ""
    """download | verify | done | failed."""
    done_bytes: int = 0
    total_bytes: int = 0
    error: str = ""
    permanent: bool = False
    """Whether another try cannot succeed."""


def progress_text(line: PrefetchLine) -> str:
    """One sentence on how far a prefetch is."""
    verb = "checking" if line.stage == "verify" else "prefetching"
    share = 100 * line.done_bytes // line.total_bytes if line.total_bytes else 0
    return f"{verb} the weights: {line.done_bytes / 1e9:.1f} of {line.total_bytes / 1e9:.1f} GB ({share} %)"


def needed(files: Iterable[WeightsFile]) -> list[WeightsFile]:
    """The files that an engine reads: without weights in other formats where there are safetensors."""
    files = list(files)
    if not any(each.path.endswith(".safetensors") for each in files):
        return files
    return [
        each
        for each in files
        if not each.path.endswith(_OTHER_FORMATS) and not each.path.startswith("original/")
    ]


def is_sound(file: WeightsFile) -> bool:
    """Whether a file that a hub lists can be one of a model: its path stays in the snapshot."""
    path = PurePosixPath(file.path)
    inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
    return inside and "\0" not in file.path and file.size >= 0 and _DIGEST.fullmatch(file.digest) is not None


def is_commit(name: str) -> bool:
    """Whether a name is a commit's."""
    return len(name) == _COMMIT_LENGTH and _DIGEST.fullmatch(name) is not None


def blob_of(model: Path, path: Path) -> Path | None:
    """The blob in the model's own directory that a file of a snapshot is a link to; None = it is another file."""
    if not path.is_symlink():
        return None
    blob = Path(os.path.normpath(path.parent / path.readlink()))
    return blob if blob.parent == model / "blobs" else None


def is_right(path: Path, file: WeightsFile) -> bool:
    """Whether the file at `path` has the stated size and checksum. Raises OSError when it cannot be read."""
    if not path.exists() or path.stat().st_size != file.size:
        return False
    if not file.digest:
        return True
    if len(file.digest) == _COMMIT_LENGTH:
        digest = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    else:
        digest = hashlib.sha256()
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest() == file.digest


def model_directory(cache: Path, repo: str) -> Path:
    """The directory of a model in the hub's cache layout."""
    return cache / f"models--{repo.replace('/', '--')}"


def manifest_path(model: Path, commit: str) -> Path:
    """Where the manifest of a snapshot is."""
    return model / "penstock" / f"{commit}.json"


def cached_commit(model: Path, revision: str) -> str:
    """The commit that a revision stands for on this host; empty when none is known."""
    if len(revision) == _COMMIT_LENGTH:
        return revision
    try:
        return (model / "refs" / revision).read_text().strip()
    except OSError:
        return ""


def read_manifest(path: Path) -> Manifest | None:
    """The manifest at `path`; None when it is missing or damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        return None


def write_manifest(model: Path, repo: str, commit: str, files: Iterable[WeightsFile]) -> None:
    """Record a snapshot whose checksums are right, atomically, and after its files are on the disk. Raises OSError."""
    snapshot = model / "snapshots" / commit
    known = []
    for each in files:
        with (snapshot / each.path).open("rb") as content:
            os.fsync(content.fileno())
            known.append(KnownFile(each, os.fstat(content.fileno()).st_mtime_ns))
    replace(manifest_path(model, commit), msgspec.json.encode(Manifest(repo, commit, known)))


def replace(path: Path, content: bytes) -> None:
    """Write a file whole, and on the disk, or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    with scratch.open("wb") as sink:
        sink.write(content)
        sink.flush()
        os.fsync(sink.fileno())
    scratch.replace(path)


def is_unchanged(model: Path, manifest: Manifest) -> bool:
    """Whether all files have the size and modification time that they had when their checksums were right.

    Layers of container images keep whole seconds only.
    """
    snapshot = model / "snapshots" / manifest.commit
    for known in manifest.files:
        try:
            found = (snapshot / known.file.path).stat()
        except OSError:
            return False
        whole_second = known.mtime_ns - known.mtime_ns % 10**9
        if found.st_size != known.file.size or found.st_mtime_ns not in (known.mtime_ns, whole_second):
            return False
    return True


def files_on_disk(model: Path, commit: str) -> list[WeightsFile]:
    """The files of a cached snapshot, with the checksums that name their blobs; empty when weights are missing.

    A file that is no link to a blob, as in a cache that was copied without links, has no known checksum.
    """
    snapshot = model / "snapshots" / commit
    if not commit or not snapshot.is_dir():
        return []
    found = [
        WeightsFile(str(path.relative_to(snapshot)), path.stat().st_size, _digest_on_disk(model, path))
        for path in sorted(snapshot.rglob("*"))
        if path.is_file()
    ]
    paths = {each.path for each in found}
    for suffix, index in _INDEXES.items():
        weights = [path for path in paths if path.endswith(suffix)]
        if weights and index in paths:
            named = msgspec.json.decode((snapshot / index).read_bytes())["weight_map"].values()
            return found if paths.issuperset(named) else []
        if weights:  # parts, such as model-00001-of-00030.safetensors, have an index
            return [] if any("-of-" in path for path in weights) else found
    return []


def _digest_on_disk(model: Path, path: Path) -> str:
    blob = blob_of(model, path)
    return blob.name if blob is not None and _DIGEST.fullmatch(blob.name) else ""


def bytes_present(model: Path, commit: str, files: Iterable[WeightsFile]) -> int:
    """Bytes of `files` that are in the cache, parts of downloads included."""
    files = list(files)
    sizes: dict[str, int] = {}
    for each in files:
        with suppress(OSError):
            sizes[each.digest] = (model / "snapshots" / commit / each.path).stat().st_size
    for path in (model / "blobs").glob("*"):
        digest = path.name.split(".")[0]
        with suppress(OSError):  # renamed meanwhile
            found = path.stat()
            # A part may have gaps, which take no blocks.
            written = (
                min(found.st_size, 512 * found.st_blocks) if path.suffix == ".incomplete" else found.st_size
            )
            sizes[digest] = max(sizes.get(digest, 0), written)
    wanted = {each.digest: each.size for each in files}
    return sum(min(sizes.get(digest, 0), size) for digest, size in wanted.items())


def least_recently_used(
    snapshots: Iterable[tuple[float, int, str]], excess: int, kept: frozenset[str]
) -> list[str]:
    """Names of snapshots to remove so that `excess` bytes become free, or as many as there are.

    `snapshots`: (time of the last use, bytes, name). Those in `kept` stay.
    """
    chosen = []
    for _, size, name in sorted(snapshots):
        if excess <= 0:
            break
        if name not in kept:
            chosen.append(name)
            excess -= size
    return chosen
