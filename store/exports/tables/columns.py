"""Columns that several tables contain, and conversion of values to JSON text."""

from __future__ import annotations

from typing import Any, Final

import orjson

from store.errors import Invalid
from store.exports.schema import TableColumn

ROLLOUT_ID: Final = TableColumn("rollout_id", "text", "The rollout.", is_nullable=False)
ATTEMPT_ID: Final = TableColumn("attempt_id", "text", "The attempt.", is_nullable=False)
SPAN_ID: Final = TableColumn("span_id", "text", "The span.", is_nullable=False)


def json_text(value: Any) -> bytes | None:
    """Return a value as JSON text; None if the value is None.

    Raises:
        Invalid: the value cannot be written as JSON, for example a text with a lone surrogate.
    """
    if value is None:
        return None
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise Invalid("value", f"{str(value)[:80]!r} cannot be written as JSON: {error}") from None
