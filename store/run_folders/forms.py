"""Formats of JSON texts: detection of the format of a text, and writing of a value in a given format.

The format is the use of spaces, line breaks and escapes. With its format, a value can be written with the same bytes.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from store.errors import StoreError
from store.validation import json_limits

_INDENTED: Final = re.compile(r"[\[{]\n( +)")
_TIGHT, _LOOSE = "tight", "loose"
_FORM: Final = re.compile(r"(tight|loose|\d{1,4})(\+ascii)?(\+end)?")


def loads(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON; NaN and infinities are not JSON either.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_storable(value: Any) -> bool:
    """Return whether a store accepts a JSON value."""
    try:
        json_limits.dumps(value, "value")
    except StoreError:
        return False
    return True


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def dumps(value: Any, form: str) -> str:
    """Return a value as JSON text in a format that `form_of` has returned."""
    width, *flags = form.split("+")
    separators = (",", ":") if width == _TIGHT else None
    indent = None if width in {_TIGHT, _LOOSE} else int(width)
    text = json.dumps(value, ensure_ascii="ascii" in flags, separators=separators, indent=indent)
    return f"{text}\n" if "end" in flags else text


def form_of(value: Any, text: str) -> str | None:
    """Return the format of a JSON text: `tight`, `loose`, or the width of its indentation.

    A `tight` text has no spaces, and a `loose` text has a space after each comma and colon. `+ascii` means that
    characters outside of ASCII are escaped, `+end` that the text ends with a line break. The result is None if no
    format reproduces the text, for example if the text has irregular spaces, duplicate keys or a number such as 1.50.
    """
    flags = ("+ascii" if text.isascii() and "\\u" in text else "") + ("+end" if text.endswith("\n") else "")
    indented = _INDENTED.match(text)
    for width in [str(len(indented[1]))] if indented else [_TIGHT, _LOOSE]:
        try:
            if dumps(value, width + flags) == text:
                return width + flags
        except RecursionError:
            return None
    return None


def is_form(name: object) -> bool:
    """Return whether a value is the name of a format."""
    return isinstance(name, str) and _FORM.fullmatch(name) is not None
