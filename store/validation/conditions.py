"""Checks of the conditions of a query, with the same messages in every store."""

from __future__ import annotations

from typing import Any, Final

from store.errors import Invalid
from store.models.queries import ConditionKind
from store.validation import arguments
from store.validation.json_limits import check_text

# The limit of the database drivers. A query may contain a text that is too long to be stored, which matches no row.
_LONGEST: Final = 2**31


def condition(value: Any, field: str, kind: ConditionKind) -> Any:
    """Check and return the value of a query's condition. Texts must be valid Unicode, as drivers require.

    Raises:
        Invalid: the value is not of this kind.
    """
    match kind:
        case "texts":
            return [check_text(item, field, _LONGEST) for item in arguments.texts(value, field)]
        case "integers":
            return arguments.whole_numbers(value, field)
        case "number":
            return arguments.finite(value, field)
        case "text":
            if not isinstance(value, str):
                raise Invalid(field, f"{value!r} is not text")
            return check_text(value, field, _LONGEST)
