"""The test's interpreter of the FOCUS requirements model implements every check that the model uses."""

import gzip
import json
import re

from tests.support.focus_model import MODEL, SUPPORTED


def test_every_check_function_is_supported() -> None:
    document = gzip.decompress(MODEL.read_bytes()).decode()
    used = set(re.findall(r'"CheckFunction": ?"([A-Za-z]+)"', document))
    assert used
    assert used <= SUPPORTED
    assert set(json.loads(document)["CheckFunctions"]) <= SUPPORTED
