"""Room for weights in the hub's cache: what is removed beyond a bound, and whether a download fits on the disk."""

import fcntl
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from huggingface_hub import CachedRepoInfo, CachedRevisionInfo, HFCacheInfo, scan_cache_dir

from core.errors import EngineFailed
from workers import weights_manifest as manifests

RESERVE_BYTES = 1 << 30
"""Bytes that stay free on the disk, or ten times what is missing if that is less."""


def remove_unused(
    cache: Path, missing: int, bound_bytes: int, kept: Collection[tuple[str, str]], own: str
) -> None:
    """Remove the least recently used snapshots until `missing` bytes more are within the bound.

    Only snapshots with a manifest are removed; what others have put into the cache stays. `kept`: repository and
    commit of what is in use. `own`: the model whose lock the caller holds. A model that another process downloads or
    checks is left alone.
    """
    if not bound_bytes:
        return
    held: set[str] = set()
    while True:
        info = scan_cache_dir(cache)
        found = {
            str(path): (repo, revision)
            for repo in info.repos
            if repo.repo_id not in held
            for revision in repo.revisions
            if (repo.repo_id, revision.commit_hash) not in kept
            and (path := manifests.manifest_path(repo.repo_path, revision.commit_hash)).exists()
        }
        snapshots = [
            (Path(path).stat().st_mtime, revision.size_on_disk, path) for path, (_, revision) in found.items()
        ]
        excess = info.size_on_disk + missing - bound_bytes
        chosen = manifests.least_recently_used(snapshots, excess, frozenset())
        if not chosen:
            return
        repo, revision = found[chosen[0]]
        with ExitStack() as lock:
            try:
                if repo.repo_id != own:
                    lock.enter_context(locked(repo.repo_path, wait=False))
            except BlockingIOError:
                held.add(repo.repo_id)
                continue
            _remove(repo, revision)


def _remove(repo: CachedRepoInfo, revision: CachedRevisionInfo) -> None:
    manifests.manifest_path(repo.repo_path, revision.commit_hash).unlink(missing_ok=True)
    # Commits may be those of several models, as of a mirror: only this one's is removed.
    only = HFCacheInfo(repo.size_on_disk, frozenset({repo}), frozenset(), [])
    only.delete_revisions(revision.commit_hash).execute()


def check_room(cache: Path, repo: str, missing: int) -> None:
    """Raise EngineFailed when the disk of the cache has not `missing` bytes free, and some more."""
    free, reserve = shutil.disk_usage(cache).free, min(RESERVE_BYTES, 10 * missing)
    if missing and free < missing + reserve:
        raise EngineFailed(
            f"{cache} has {free / 1e9:.1f} GB free, and {repo} needs {missing / 1e9:.1f} GB more and "
            f"{reserve / 1e9:.1f} GB in reserve; free space or set PENSTOCK_WEIGHTS_CACHE_GB"
        )


@contextmanager
def locked(model: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a model, after any other process of this host; raises BlockingIOError instead of waiting."""
    path = model.parent / ".locks" / f"penstock-{model.name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
