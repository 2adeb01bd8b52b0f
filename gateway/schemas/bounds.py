"""Upper bounds of a prompt's tokens, computed from its bytes without a tokenizer.

No token is shorter than a byte of the text that is tokenized. That text may be longer than what the client sent, in
three ways, each of which is bounded here:

* Tokenizers normalise text (NFC, or NFKC with SentencePiece), which lengthens some characters, at most by 30 bytes.
* Chat templates parse JSON, the tools and the arguments of tool calls, and write it again, indented by up to four
  blanks or as a list of declarations, with numbers such as 1e15 in full and other characters than ASCII escaped.
* Chat templates write a text of their own around messages and tools (`gateway/schemas/chat.py`).
"""

import re
import unicodedata

import msgspec

LONGER_BYTES = 3
"""Bytes by which normalisation lengthens a character of `_LONGER` at most."""
MUCH_LONGER_BYTES = 30
"""Bytes by which it lengthens a character of `_MUCH_LONGER` at most: U+FDFA has 3 bytes, and 33 in NFKC."""
NUMBER_BYTES = 24
"""Bytes of the longest number as Python writes it."""
INDENT = 4
"""Blanks per level of indented JSON."""
_LONGER = re.compile(
    "["
    "\xa8-\xbe\u013f-\u0140\u0149\u01c4-\u01c6\u02d8-\u02dd\u0344\u037a\u0384-\u0385\u0587"
    "\u0675-\u0678\u0958-\u095f\u09dc-\u09df\u0a33-\u0a36\u0a59-\u0a5e\u0b5c-\u0b5d\u0e33\u0eb3"
    "\u0edc-\u0edd\u0f43\u0f4d-\u0f5c\u0f69\u0f73-\u0f81\u0f93\u0f9d-\u0fac\u0fb9\u1fc1\u1fcd-\u1fcf"
    "\u1fdd-\u1fdf\u1fed-\u1fee\u2033-\u2037\u2057\u2150-\u2167\u2177\u2189\u222c-\u2230\u247d-\u2487"
    "\u2a0c\u2adc\u309b-\u309f\u30ff\u3200-\u3243\u327c-\u327d\u32c0-\u32cb\u32ff-\u3370\u337b-\u337f"
    "\u3389\u33a7-\u33af\u33c2-\u33c6\u33d8-\u33fe\ufa6c\ufacf-\ufad7\ufb13-\ufb1f\ufb2a-\ufb4f\ufbdd"
    "\ufbea-\ufd3d\ufd50-\ufdc7\ufdf0-\ufdfc\ufe71-\ufe7f\ufef5-\ufefc\U0001d15e-\U0001d164"
    "\U0001d1bb-\U0001d1c0\U0001f12a\U0001f200-\U0001f201\U0001f240-\U0001f248"
    "]"
)
"""Characters that NFC or NFKC makes longer in UTF-8, with some beside them (Unicode 16)."""
_MUCH_LONGER = re.compile(
    "["
    "\u0f77-\u0f79\u2034-\u2037\u2057\u222d-\u2230\u2a0c\u321d-\u321e\u3300-\u3357\u337f\u33ae-\u33af"
    "\ufdf2-\ufdfc\U0001d15e-\U0001d164\U0001d1bb-\U0001d1c0\U0001f240-\U0001f248"
    "]"
)
"""Those that become longer by more than LONGER_BYTES."""
_EXPONENT = re.compile(rb"[0-9][eE]")
_ASCII = bytes(range(128))


def normalised_bytes(text: bytes) -> int:
    """Upper bound of the bytes of a UTF-8 text after NFC or NFKC."""
    if text.isascii():
        return len(text)
    characters = text.decode()
    if unicodedata.is_normalized("NFKC", characters):
        return len(text)
    longer = len(_LONGER.findall(characters))
    if not longer:
        return len(text)
    much = len(_MUCH_LONGER.findall(characters))
    return len(text) + LONGER_BYTES * (longer - much) + MUCH_LONGER_BYTES * much


def rewritten_growth(document: bytes) -> int:
    """Upper bound of the bytes that a template adds when it parses a JSON document and writes it again.

    0 for what is not JSON: the engine refuses it.
    """
    try:
        indented = len(msgspec.json.format(document, indent=INDENT))
    except msgspec.DecodeError:
        return 0
    growth = max(indented, 2 * len(document)) - len(document)
    growth += NUMBER_BYTES * len(_EXPONENT.findall(document))
    growth += NUMBER_BYTES * document.count(b"\x7f")  # DEL, which some encoders escape
    if not document.isascii():
        growth += 2 * len(document.translate(None, _ASCII))  # two bytes as \u0411, four as \ud83d\ude00
    return growth
