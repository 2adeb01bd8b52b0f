"""Finds a model's tokenizer and chat template on this machine, or downloads them."""

from pathlib import Path

from huggingface_hub import snapshot_download

from core.errors import Unavailable
from workers.catalog import Catalog, CatalogModel
from workers.engine_command import tiny_directory
from workers.hub_errors import HUB_FAILURES

_FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
_NEEDED = "tokenizer.json"


def tokenizer_directory(name: str, catalog: Catalog, data_dir: Path, tokenizer_dir: Path) -> Path:
    """A directory with a model's tokenizer: the operator's, the toy model's own, or one downloaded from the hub.

    `tokenizer_dir` "." stands for `tokenizers` in `data_dir`. The first call may block while it downloads a few
    megabytes; nothing is downloaded for a model that the catalog does not have. Raises Unavailable with what is missing
    and where it belongs.
    """
    base = tokenizer_dir if tokenizer_dir != Path() else data_dir / "tokenizers"
    place = base / name.replace("/", "--")
    if (place / _NEEDED).exists():
        return place
    model = catalog.models.get(name)
    if model is None:
        raise Unavailable(f"the tokenizer of {name} is not known; put its {', '.join(_FILES)} into {place}")
    if model.toy:
        toy = tiny_directory(data_dir)
        if (toy / _NEEDED).exists():
            return toy
        raise Unavailable(f"{toy} has no tokenizer yet; the agent makes it on the machine it runs on")
    local = Path(model.hub_id)
    if local.is_absolute():
        if (local / _NEEDED).exists():
            return local
        raise Unavailable(
            f"{local} on this machine has no {_NEEDED}; put the {', '.join(_FILES)} into {place}"
        )
    try:
        snapshot_download(model.hub_id, revision=_revision(model), allow_patterns=_FILES, local_dir=place)
    except HUB_FAILURES as error:
        raise Unavailable(
            f"the tokenizer of {model.hub_id} could not be fetched ({type(error).__name__}); put its "
            f"{', '.join(_FILES)} into {place}"
        ) from None
    if not (place / _NEEDED).exists():
        raise Unavailable(f"{model.hub_id} has no {_NEEDED}, which is needed to match its prompts exactly")
    return place


def _revision(model: CatalogModel) -> str | None:
    """The revision of the weights that the engines load."""
    stated = model.profile().args.get("revision")
    return str(stated) if stated else None
