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

from core.errors import EngineFailed

_CHUNK = 1 << 20
_COMMIT_LENGTH = 40
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_OTHER_FORMATS = (".bin", ".pt", ".pth", ".gguf")
"""The same weights in other formats, which vLLM does not read where a folder has safetensors."""
_UNREAD = (".onnx", ".onnx_data", ".tflite", ".ckpt", ".h5", ".msgpack", ".ot")
"""Formats of weights that vLLM never reads."""
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg")
_OTHER_FOLDERS = ("original/", "onnx/", "openvino/", "coreml/", "metal/")
"""Folders in which models have their weights for other programs."""
_SAFETENSORS = (
    "auto", "hf", "mistral", "safetensors", "fastsafetensors", "instanttensor", "bitsandbytes",
    "runai_streamer", "dummy",
)  # fmt: skip
"""Values of `load-format` with which vLLM takes safetensors if there are any."""
_CONSOLIDATED = "consolidated"
"""How names begin of safetensors in Mistral's format, which `auto` prefers (vLLM's default_loader.py)."""
_INDEXES = {
    "consolidated": "consolidated.safetensors.index.json",
    "safetensors": "model.safetensors.index.json",
    "bin": "pytorch_model.bin.index.json",
}
"""Kinds of weights that vLLM loads, and the file that names the parts of a model with several."""


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
    load_format: str = "auto"
    """For which `load-format` of an engine the files were chosen."""


class _Index(msgspec.Struct):
    """What matters of an index of weights: the file of each."""

    weight_map: dict[str, str]


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


def needed(files: Iterable[WeightsFile], load_format: str = "auto") -> list[WeightsFile]:
    """The files that an engine reads with this `load-format`, each weight in one format alone.

    The safetensors beside config.json decide: those of an adapter in a folder do not replace them.
    """
    files = [each for each in files if not each.path.endswith((*_UNREAD, *_PICTURES))]
    kinds = {_kind(each.path) for each in files}
    if load_format not in _SAFETENSORS or kinds.isdisjoint(("consolidated", "safetensors")):
        return files
    twice = kinds.issuperset(("consolidated", "safetensors"))
    second = "consolidated" if load_format not in ("auto", "mistral") else "safetensors"
    folders = {_folder(each.path) for each in files if each.path.endswith(".safetensors")}
    return [
        each
        for each in files
        if not (twice and (_kind(each.path) == second or each.path == _INDEXES[second]))
        and not each.path.startswith(_OTHER_FOLDERS)
        and not (each.path.endswith(_OTHER_FORMATS) and _folder(each.path) in folders)
    ]


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


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


def write_manifest(
    model: Path, repo: str, commit: str, files: Iterable[WeightsFile], load_format: str = "auto"
) -> None:
    """Record a snapshot whose checksums are right, atomically, and after its files are on the disk. Raises OSError."""
    snapshot = model / "snapshots" / commit
    known = []
    for each in files:
        with (snapshot / each.path).open("rb") as content:
            os.fsync(content.fileno())
            known.append(KnownFile(each, os.fstat(content.fileno()).st_mtime_ns))
    replace(manifest_path(model, commit), msgspec.json.encode(Manifest(repo, commit, known, load_format)))


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

    Raises EngineFailed when an index of them is damaged. A file that is no link to a blob, as in a cache that was
    copied without links, has no known checksum.
    """
    snapshot = model / "snapshots" / commit
    if not commit or not snapshot.is_dir():
        return []
    found = [
        WeightsFile(str(path.relative_to(snapshot)), path.stat().st_size, _digest_on_disk(model, path))
        for path in sorted(snapshot.rglob("*"))
        if path.is_file()
    ]
    kinds: dict[str, set[str]] = {}
    for each in found:
        if kind := _kind(each.path):
            kinds.setdefault(kind, set()).add(each.path)
    if len(kinds) > 1:  # vLLM reads no .bin where there are safetensors
        kinds.pop("bin", None)
    whole = any(_is_whole(snapshot / _INDEXES[kind], weights) for kind, weights in kinds.items())
    return found if whole else []


def _kind(path: str) -> str:
    """Of which kind of weights a file beside config.json is; empty = of none that vLLM loads by itself."""
    if _folder(path) == "" and path.endswith(".safetensors"):
        return "consolidated" if path.startswith(_CONSOLIDATED) else "safetensors"
    return "bin" if _folder(path) == "" and path.endswith(".bin") else ""


def _is_whole(index: Path, weights: set[str]) -> bool:
    """Whether all parts are there; parts, such as model-00001-of-00030.safetensors, have an index."""
    if index.is_file():
        return weights >= _named_by(index)
    return not any("-of-" in path for path in weights)


def _named_by(index: Path) -> set[str]:
    """The files that an index names. Raises EngineFailed when it is damaged."""
    try:
        return set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineFailed(
            f"{index} is damaged: {error}; remove it, so that it is downloaded again"
        ) from error


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
