"""Fetches the files of a LoRA adapter from the model hub, once, when it is imported: hosts never ask the hub for it."""

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

from admin.actor import Actor, require
from admin.adapters import AdapterLimits, AdapterView, Upload, check_place, create_adapter
from core.db import Database
from core.errors import InvalidRequest, NotFound, RequestTooLarge, Unavailable
from tenants.roles import KEY_MANAGERS
from workers.adapter_files import CONFIG, MAX_CONFIG_BYTES, WEIGHTS
from workers.hub_errors import HUB_FAILURES

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


async def import_adapter(
    database: Database,
    actor: Actor,
    *,
    tenant_id: UUID,
    model: str,
    name: str,
    repository: str,
    revision: str,
    limits: AdapterLimits,
) -> AdapterView:
    """Store the adapter of a repository at a revision of the hub. Raises as `create_adapter` and `hub_adapter`."""
    require(actor, *KEY_MANAGERS, tenant_id=tenant_id)
    await check_place(database, tenant_id, model, name, limits)
    async with hub_adapter(repository, revision, limits.bytes) as files:
        return await create_adapter(
            database, actor, tenant_id=tenant_id, model=model, name=name, upload=files, limits=limits
        )


@asynccontextmanager
async def hub_adapter(repository: str, revision: str, most_bytes: int) -> AsyncIterator[Upload]:
    """The files of a repository at a revision, open until the end of the block.

    Raises InvalidRequest for a malformed name; NotFound when the hub has no such repository, revision or files;
    RequestTooLarge above `most_bytes`; Unavailable when it does not answer.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise InvalidRequest(
            f"repository is OWNER/NAME on the hub, not {repository[:100]!r}", param="repository"
        )
    with tempfile.TemporaryDirectory(prefix="penstock-adapter-") as scratch:
        commit = await asyncio.to_thread(_download, repository, revision or "main", Path(scratch), most_bytes)
        config, weights = Path(scratch) / CONFIG, Path(scratch) / WEIGHTS
        with weights.open("rb") as file:
            source = f"{repository}@{commit}"
            yield Upload(config.read_bytes(), file, weights.stat().st_size, source)


def _download(repository: str, revision: str, into: Path, most_bytes: int) -> str:
    """Download both files; returns the commit."""
    endpoint = os.environ.get("HF_ENDPOINT")
    try:
        info = HfApi(endpoint=endpoint).model_info(
            repository, revision=revision, files_metadata=True, timeout=30.0
        )
        sizes = {each.rfilename: each.size or 0 for each in info.siblings or ()}
        for name in (CONFIG, WEIGHTS):
            if name not in sizes:
                raise NotFound(f"{repository} has no file {name} at {revision!r}", param="repository")
        total = sizes[CONFIG] + sizes[WEIGHTS]
        if total > most_bytes or sizes[CONFIG] > MAX_CONFIG_BYTES:
            raise RequestTooLarge(
                f"the adapter has {total:,} bytes, and at most {most_bytes:,} are accepted",
                param="repository",
            )
        commit = info.sha or ""
        if not _COMMIT.fullmatch(commit):
            raise Unavailable(f"the model hub names no commit of {repository}")
        for name in (CONFIG, WEIGHTS):
            hf_hub_download(
                repository, name, revision=commit, local_dir=into, etag_timeout=30.0, endpoint=endpoint
            )
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError):
        raise NotFound(
            f"the model hub has no {repository} at {revision[:100]!r}, or not for this platform",
            param="repository",
        ) from None
    except HUB_FAILURES as error:
        raise Unavailable(
            f"the model hub does not give {repository} ({type(error).__name__}); try again later, or upload its files",
            code="hub_unreachable",
        ) from None
    if sum((into / name).stat().st_size for name in (CONFIG, WEIGHTS)) > most_bytes:
        raise RequestTooLarge("the adapter is larger than the hub says", param="repository")
    return commit
