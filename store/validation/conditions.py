"""Checks of the conditions of a query, with the same messages in every store."""

from __future__ import annotations

from typing import Any, Final

from store.errors import Invalid
from store.models.queries import ConditionKind
from store.validation import arguments
from store.validation.json_limits import check_text

# The drivers' limit. Texts that are too long to be stored are allowed in a query, which finds no row for them.
_LONGEST: Final = 2**31


def condition(value: Any, field: str, kind: ConditionKind) -> Any:
    """Return the value of a query's condition. Its texts are valid UTF-8, because the drivers refuse other texts.

    Raises:
        Invalid: the value is not of this kind.
    """
    match kind:
        case "texts":
            return [check_text(each, field, _LONGEST) for each in arguments.texts(value, field)]
        case "integers":
            return arguments.whole_numbers(value, field)
        case "number":
            return arguments.finite(value, field)
        case "text":
            if not isinstance(value, str):
                raise Invalid(field, f"{value!r} is not text")
            return check_text(value, field, _LONGEST)
