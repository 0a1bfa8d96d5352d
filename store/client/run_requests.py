"""Arguments about runs become requests; what they share with all other calls is in `requests`."""

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
    """Return a path of a run.

    Raises:
        Invalid: an id is one that no path can name.
    """
    named = {field: requests.name(value, field) for field, value in {"rollout_id": rollout_id, **ids}.items()}
    return requests.path(template, **named)


def view(given: Any, as_at: AsAt | None, at: int | None, **fields: Any) -> dict[str, Any]:
    """Return which part of a run is read, as keys of a query.

    Raises:
        Invalid: as every store refuses it.
    """
    said = {"view": given, **requests.given(**fields)}
    return {name: text(value, name) for name, value in said.items()} | requests.past(as_at, at)


def text(value: Any, field: str) -> str:
    """Return a text to look for; errors as `view`."""
    return requests.sought(arguments.text(value, field), field)


def events(given: Sequence[RunEvent], key: Any) -> bytes:
    """Return the body that appends what a run says.

    Raises:
        TooLarge: more than a call takes.
        Invalid: one is no run event, or holds what JSON cannot carry.
    """
    check_call(len(given), 0, "events")
    items: list[bytes] = []
    for index, event in enumerate(given):
        if not isinstance(event, RunEvent):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid(f"events[{index}]", f"is {type(event).__name__}, not a RunEvent")
        # Of its own fields most are None, which says nothing.
        said = requests.given(**event.__dict__) | (event.model_extra or {})
        items.append(requests.body(f"events[{index}].", **said))
    rest = b"}" if key is None else b"," + requests.body(key=arguments.text(key, "key"))[1:]
    return b'{"events":[' + b",".join(items) + b"]" + rest


def body(**fields: Any) -> bytes:
    """Return an object of the fields that are not None.

    Raises:
        Invalid: a field holds what JSON cannot carry, or `graph` is none.
    """
    given = requests.given(**fields)
    arguments.phase_graph(given.get("graph"))
    return requests.body(**{name: _plain(value) for name, value in given.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, PhaseGraph):
        return value.model_dump()
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value


def part(node: Any, phase: Any, scopes: Any, on_missing: Any) -> dict[str, Any]:
    """Return which part of a run is to run again, as fields of a body.

    Raises:
        Invalid: as every store refuses it.
    """
    arguments.choice(on_missing, "on_missing", "error", "full")
    given = arguments.texts(scopes, "scopes")
    for name, value in (("node", node), ("phase", phase)):
        if value is not None:
            arguments.text(value, name)
    return {"node": node, "phase": phase, "scopes": given, "on_missing": on_missing}
