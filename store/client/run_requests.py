"""Requests of the methods of `store.runs`: their arguments as paths, query fields and JSON bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from store.client import requests
from store.errors import Invalid
from store.interface.store import AsAt
from store.models import PhaseGraph, RunEvent
from store.validation import arguments
from store.validation.json_limits import check_call


def path(template: str, rollout_id: Any, **ids: Any) -> str:
    """Return the URL path of a resource of a run.

    Raises:
        Invalid: an id is empty, is not a string, or contains characters that a database cannot store.
    """
    named = {field: requests.name(value, field) for field, value in {"rollout_id": rollout_id, **ids}.items()}
    return requests.path(template, **named)


def view(given: Any, as_at: AsAt | None, at: int | None, **fields: Any) -> dict[str, Any]:
    """Return the query fields that select a part of a run.

    Raises:
        Invalid: a field has a wrong value.
    """
    texts = {"view": given, **requests.given(**fields)}
    return {name: text(value, name) for name, value in texts.items()} | requests.moment(as_at, at)


def text(value: Any, field: str) -> str:
    """Check and return a string to look up.

    Raises:
        Invalid: the value is not a string, or contains characters that a database cannot store.
    """
    return requests.lookup_id(arguments.text(value, field), field)


def events(given: Sequence[RunEvent], key: Any) -> bytes:
    """Return the request body that appends events to a run.

    Raises:
        TooLarge: the number of events is above the limit of one call.
        Invalid: an item is not a run event, or JSON cannot represent it.
    """
    check_call(len(given), 0, "events")
    items: list[bytes] = []
    for index, event in enumerate(given):
        if not isinstance(event, RunEvent):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid(f"events[{index}]", f"is {type(event).__name__}, not a RunEvent")
        # Declared fields that are None are left out. Fields that the model does not declare are sent even if they are
        # None.
        fields = requests.given(**event.__dict__) | (event.model_extra or {})
        items.append(requests.body(f"events[{index}].", **fields))
    rest = b"}" if key is None else b"," + requests.body(key=arguments.text(key, "key"))[1:]
    return b'{"events":[' + b",".join(items) + b"]" + rest


def body(**fields: Any) -> bytes:
    """Return a JSON object of the fields that are not None.

    Raises:
        Invalid: JSON cannot represent a field, or `graph` is not a phase graph.
    """
    given = requests.given(**fields)
    arguments.phase_graph(given.get("graph"))
    return requests.body(**{name: _plain(value) for name, value in given.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, PhaseGraph):
        return value.model_dump()
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value


def part(node: Any, phase: Any, scopes: Any, on_missing: Any) -> dict[str, Any]:
    """Return the body fields that select which part of a run is repeated.

    Raises:
        Invalid: a field has a wrong value.
    """
    arguments.choice(on_missing, "on_missing", "error", "full")
    given = arguments.texts(scopes, "scopes")
    for name, value in (("node", node), ("phase", phase)):
        if value is not None:
            arguments.text(value, name)
    return {"node": node, "phase": phase, "scopes": given, "on_missing": on_missing}
