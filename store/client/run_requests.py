"""Requests of the methods of `store.runs`: their arguments as paths, query fields and JSON bodies."""

from __future__ import annotations

from typing import Any

from store.client import requests
from store.interface.store import AsAt
from store.validation import arguments


def path(template: str, rollout_id: Any, **ids: Any) -> str:
    """Return the URL path of a resource of a run.

    Raises:
        Invalid: an id is empty, is not a string, or contains characters that a database cannot store.
    """
    named = {field: requests.name(value, field) for field, value in {"rollout_id": rollout_id, **ids}.items()}
    return requests.path(template, **named)


def view(view_name: Any, as_at: AsAt | None, at: int | None, **fields: Any) -> dict[str, Any]:
    """Return the query fields that select a part of a run.

    Raises:
        Invalid: a field has a wrong value.
    """
    texts = {"view": view_name, **requests.given(**fields)}
    return {name: text(value, name) for name, value in texts.items()} | requests.moment(as_at, at)


def text(value: Any, field: str) -> str:
    """Check and return a string to look up.

    Raises:
        Invalid: the value is not a string, or contains characters that a database cannot store.
    """
    return requests.lookup_id(arguments.text(value, field), field)
