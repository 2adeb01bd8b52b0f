"""Where a model's tokenizer is looked for."""

from pathlib import Path

import pytest

from core.errors import Unavailable
from workers.catalog import load_catalog
from workers.tokenizer_files import tokenizer_directory

NAME = "acme/made-up"


def test_a_model_that_the_catalog_does_not_have_uses_the_operators_tokenizer(tmp_path: Path) -> None:
    place = tmp_path / "tokenizers" / "acme--made-up"
    with pytest.raises(
        Unavailable, match=r"the tokenizer of acme/made-up is not known; put its tokenizer\.json"
    ) as caught:
        tokenizer_directory(NAME, load_catalog(), tmp_path, Path())
    assert str(place) in caught.value.message
    place.mkdir(parents=True)
    (place / "tokenizer.json").write_text("{}")
    assert tokenizer_directory(NAME, load_catalog(), tmp_path, Path()) == place
