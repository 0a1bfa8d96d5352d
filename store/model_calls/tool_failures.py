"""The failure that the result of a tool states. Decision 112."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final

import orjson

from store.model_calls.json_values import as_object

_STATUSES: Final = ("exit_code", "exitcode", "exit_status", "return_code", "returncode")
_EXIT: Final = re.compile(
    r"[\[(<*\s]*(?:the )?(?:process |command |program )?(?:exited|exit|returned|failed)(?: with)?"
    r"(?: non-?zero)?(?: exit)?(?: code| status)?\s*[:=]?\s*(-?\d{1,3})[\])>*.\s]*",
    re.IGNORECASE,
)
_LONGEST_EXIT: Final = 80
_LONGEST_JSON: Final = 100_000


def failure_in(result: str) -> str:
    """Return the failure that a result states, such as `exit 1`; an empty text if it states none.

    The result is a JSON object with an exit code or an error, or a text whose first or last line states an exit code.
    """
    fields: dict[str, Any] = {}
    if len(result) <= _LONGEST_JSON and result.lstrip()[:1] == "{":
        with suppress(ValueError):
            fields = as_object(orjson.loads(result))
    if fields:
        code = next((fields[name] for name in _STATUSES if type(fields.get(name)) is int), 0)
        if code:
            return f"exit {code}"
        is_error = fields.get("is_error") is True or fields.get("isError") is True or fields.get("success") is False
        return "error" if is_error or (isinstance(fields.get("error"), (str, dict)) and fields["error"]) else ""
    text = result.strip()
    for line in (text[text.rfind("\n") + 1 :], text.partition("\n")[0]):
        match = _EXIT.fullmatch(line) if len(line) <= _LONGEST_EXIT else None
        if match is not None and int(match[1]):
            return f"exit {int(match[1])}"
    return ""
