"""Downloads the weights of a model into the hub's cache and checks them: `python -m workers.prefetch`.

A process of its own, so that the agent never waits for disk or network. All engines of the host share the cache, and
a lock per model has replicas of one model download once. Each line of output is a PrefetchLine.
"""

import argparse
import fcntl
import glob
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
from huggingface_hub import (
    HfApi,
    constants,
    set_client_factory,
    snapshot_download,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # its HTTP client, under every version's name
from huggingface_hub.utils._http import default_client_factory

from core.errors import EngineFailed
from workers import weights_manifest as manifests
from workers import weights_room
from workers.hub_errors import HUB_FAILURES
from workers.replica_view import EngineRefused
from workers.weights_manifest import PrefetchLine, WeightsFile

ATTEMPTS = 3
"""Downloads of files whose checksums are wrong before the replica fails."""
REPORT_S = 0.5
"""Seconds between reports of the progress."""
READERS = 4
"""Files whose checksums are computed at a time: one reader is slower than the disks of GPU hosts."""
ANSWER_S = 30.0
"""Seconds in which the hub has to answer, or to send more of a file."""


Report = Callable[[PrefetchLine], None]


def prefetch(
    repo: str,
    revision: str,
    cache: Path,
    report: Report,
    *,
    bound_bytes: int = 0,
    kept: frozenset[str] = frozenset(),
    load_format: str = "auto",
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Have the files of a revision in the cache with the right checksums. A snapshot that is unchanged is left alone.

    `bound_bytes`: size of the cache beyond which unused snapshots are removed, 0 = none. `kept`: what planned replicas
    use besides, as NAME@REVISION. `load_format`: that of the engine, which says what is needed.
    Raises EngineRefused when another try cannot succeed, else EngineFailed.
    """
    model = manifests.model_directory(cache, repo)
    if _is_ready(model, revision, load_format):
        return
    if not all(os.access(place, os.W_OK) for place in (cache, model) if place.exists()):
        _check_given(cache, repo, revision, model)
        return
    commit, files, from_disk = _listed(repo, revision, model, load_format)
    total = sum({each.digest: each.size for each in files}.values())
    line = PrefetchLine("verify" if from_disk else "download", 0, total)
    present = partial(manifests.bytes_present, model, commit, files)
    with _reporting(line, present, report), weights_room.locked(model):
        if _is_ready(model, revision, load_format):
            return
        if from_disk:
            _check_cached(repo, commit, model, files, line)
            if not all(each.digest for each in files):
                return  # not proved: compared once the hub states the checksums
        else:
            _remove_parts(model)
            missing = total - present()
            in_use = _commits(cache, kept) | {(repo, commit)}
            weights_room.remove_unused(cache, missing, bound_bytes, in_use, repo)
            weights_room.check_room(cache, repo, missing)
            _fill(repo, commit, cache, files, line, pause)
        manifests.write_manifest(model, repo, commit, files, load_format)
        if revision != commit:
            manifests.replace(model / "refs" / revision, commit.encode())


def _commits(cache: Path, names: frozenset[str]) -> set[tuple[str, str]]:
    """The repositories and commits that names of models, as NAME@REVISION, stand for in this cache."""
    parts = (name.partition("@") for name in names)
    return {
        (repo, manifests.cached_commit(manifests.model_directory(cache, repo), revision or "main"))
        for repo, _, revision in parts
    }


def _check_cached(repo: str, commit: str, model: Path, files: list[WeightsFile], line: PrefetchLine) -> None:
    """Compare cached files with the checksums that name them, while the hub cannot be asked. Nothing is removed."""
    wrong = [path for path, _ in _compared(model, commit, files, line)]
    if wrong:
        raise EngineFailed(
            f"{', '.join(wrong[:3])} of {repo} at {commit[:12]} is damaged in the cache, and the hub does not give it"
        )


def _fill(
    repo: str,
    commit: str,
    cache: Path,
    files: list[WeightsFile],
    line: PrefetchLine,
    pause: Callable[[float], None],
) -> None:
    """Download the files, and those again whose content is wrong. Raises EngineFailed or EngineRefused."""
    model = manifests.model_directory(cache, repo)
    for attempt in range(ATTEMPTS):
        pause(float(attempt))
        failure = _download(repo, commit, cache, files)
        line.stage, line.done_bytes = "verify", 0
        wrong = _compared(model, commit, files, line)
        for path, _ in wrong:
            _remove(model, model / "snapshots" / commit / path)
        line.stage = "download"
        if not wrong:
            return
    text = f"{', '.join(path for path, _ in wrong[:3])} of {repo} at {commit[:12]}"
    if failure or not all(there for _, there in wrong):
        raise EngineFailed(f"{text} could not be downloaded: {failure or 'the hub does not give it'}")
    raise EngineRefused(f"the hub served {text} with wrong content {ATTEMPTS} times")


def _is_ready(model: Path, revision: str, load_format: str) -> bool:
    """Whether the revision's files are unchanged since their checksums were right; notes the use."""
    path = manifests.manifest_path(model, manifests.cached_commit(model, revision))
    manifest = manifests.read_manifest(path)
    if manifest is None or manifest.load_format != load_format:
        return False
    if not manifests.is_unchanged(model, manifest):
        return False
    with suppress(OSError):  # of an image that is read only
        path.touch()
    return True


def _check_given(cache: Path, repo: str, revision: str, model: Path) -> None:
    """Raise EngineRefused when a cache that is read only, as in an image, has not all weights of a revision.

    Their content is not compared: whoever has filled it has to do that, and nothing could be downloaded instead.
    """
    try:
        found = manifests.files_on_disk(model, manifests.cached_commit(model, revision))
    except EngineFailed as error:  # nothing here can mend a damaged index
        raise EngineRefused(f"{error.message}; the agent may not write {cache}") from error
    if not found:
        raise EngineRefused(
            f"{repo} at {revision} is not whole in {cache}, which the agent may not write: download it there with "
            f"`python -m workers.prefetch {repo}@{revision}`, or set HF_HUB_CACHE to a directory of the agent's user"
        )


def _listed(repo: str, revision: str, model: Path, load_format: str) -> tuple[str, list[WeightsFile], bool]:
    """The commit of a revision, the files that an engine needs, and whether they are those of the cache alone.

    A revision whose files were once whole stays at its commit. Where the hub does not give a model, one that is whole
    in the cache is used.
    """
    cached = manifests.cached_commit(model, revision)
    known = manifests.read_manifest(manifests.manifest_path(model, cached)) is not None
    try:
        info = HfApi().model_info(
            repo, revision=cached if known else revision, files_metadata=True, timeout=ANSWER_S
        )
    except HFValidationError as error:
        raise EngineRefused(f"{repo!r} is no name on the hub, such as ORG/NAME") from error
    except HUB_FAILURES as error:
        if files := manifests.files_on_disk(model, cached):
            return cached, files, True
        raise _not_given(repo, revision, error) from error
    files = [
        WeightsFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else each.blob_id or "")
        for each in info.siblings or ()
    ]
    commit = str(info.sha)
    for each in files:
        if not manifests.is_sound(each):
            raise EngineRefused(f"the hub lists {each.path!r} for {repo}, which is no file of a model")
    if not manifests.is_commit(commit):
        raise EngineRefused(f"the hub says that {repo} is at {commit!r}, which is no commit")
    return commit, manifests.needed(files, load_format), False


def _not_given(repo: str, revision: str, error: Exception) -> EngineFailed:
    """What to raise for a model that the hub does not give and the cache has not."""
    if isinstance(error, GatedRepoError):
        return EngineRefused(f"{repo} is gated: set HF_TOKEN of an account that has accepted its terms")
    if isinstance(error, RevisionNotFoundError):
        return EngineRefused(f"{repo} has no revision {revision!r} on the hub")
    if isinstance(error, RepositoryNotFoundError):
        return EngineRefused(f"the hub has no model {repo}, or HF_TOKEN may not read it")
    return EngineFailed(
        f"{repo} at {revision} is not in the cache and the hub does not answer ({type(error).__name__})"
    )


def _download(repo: str, commit: str, cache: Path, files: list[WeightsFile]) -> str:
    """Download what is missing; returns why that failed, or nothing."""
    try:
        snapshot_download(
            repo, revision=commit, cache_dir=cache, allow_patterns=[glob.escape(each.path) for each in files]
        )
    except HUB_FAILURES as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def _remove_parts(model: Path) -> None:
    """Remove parts of downloads that have ended: the client begins each one anew, under another name.

    A part whose lock is held, as the client does while it downloads, stays.
    """
    locks = model.parent / ".locks" / model.name
    for part in (model / "blobs").glob("*.incomplete"):
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / f"{part.name.split('.')[0]}.lock").open("a") as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink(missing_ok=True)


def _compared(
    model: Path, commit: str, files: list[WeightsFile], line: PrefetchLine
) -> list[tuple[str, bool]]:
    """The files that are missing or have wrong checksums: path, and whether it is there.

    Counts the bytes that were compared in `line`.
    """
    wrong, checked = [], dict[str, int]()
    paths = [model / "snapshots" / commit / each.path for each in files]
    with ThreadPoolExecutor(READERS) as pool:
        for path, each, right in zip(paths, files, pool.map(manifests.is_right, paths, files), strict=True):
            if not right:
                wrong.append((each.path, path.exists()))
            checked[each.digest] = each.size
            line.done_bytes = sum(checked.values())
    return wrong


def _remove(model: Path, path: Path) -> None:
    """Remove a file of a snapshot, and its blob in the model's own directory."""
    if (blob := manifests.blob_of(model, path)) is not None:
        blob.unlink(missing_ok=True)
    path.unlink(missing_ok=True)


@contextmanager
def _reporting(line: PrefetchLine, present: Callable[[], int], report: Report) -> Iterator[None]:
    """Report `line` at once and every half second, with the bytes that are present unless these are checked."""
    ended = threading.Event()

    def run() -> None:
        while True:
            report(line if line.stage == "verify" else msgspec.structs.replace(line, done_bytes=present()))
            if ended.wait(REPORT_S):
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _client() -> httpx.Client:
    """The hub client's HTTP client, with an end to waiting."""
    made = default_client_factory()
    made.timeout = httpx.Timeout(ANSWER_S)
    return made


def main(arguments: list[str]) -> int:
    """Prefetch by the command line; 1 when that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", metavar="NAME[@REVISION]", help="as ORG/NAME@main, the default")
    parser.add_argument("--bound-gb", type=float, default=0.0)
    parser.add_argument(
        "--keep", action="append", default=[], metavar="NAME[@REVISION]", help="models that stay"
    )
    parser.add_argument("--load-format", default="auto", help="that of the engine; the default is vLLM's")
    options = parser.parse_args(arguments)

    def report(line: PrefetchLine) -> None:
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
        sys.stdout.flush()

    cache = Path(constants.HF_HUB_CACHE)
    set_client_factory(_client)
    try:
        named = [each.partition("@") for each in options.models]
        for repo, _, revision in named:
            prefetch(
                repo,
                revision or "main",
                cache,
                report,
                bound_bytes=int(options.bound_gb * 1e9),
                kept=frozenset([*options.models, *options.keep]),
                load_format=options.load_format,
            )
    except EngineFailed as error:
        report(PrefetchLine("failed", error=error.message, permanent=isinstance(error, EngineRefused)))
        return 1
    except OSError as error:
        report(PrefetchLine("failed", error=f"the weights cannot be kept in {cache}: {error}"))
        return 1
    except Exception as error:
        logging.exception("the prefetch failed")
        report(PrefetchLine("failed", error=f"the prefetch failed: {type(error).__name__}: {error}"[:500]))
        return 1
    report(PrefetchLine("done"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
