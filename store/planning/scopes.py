"""Scopes that a rollout names in its input, and default scopes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from store.models.phases import PhaseGraph
from store.planning.imported_runs import DEFAULT_SCOPES, imported_id


def scopes_in_input(graph: PhaseGraph, input_: Any) -> dict[str, list[str]]:
    """Return the scopes in the input of a run, by kind.

    The key in the input is derived from the name of the kind. For example, scopes of the kind `ticker` are under the
    key `ticker`, `tickers`, `ticker_id` or `ticker_ids`.
    """
    fields = cast("Mapping[str, Any]", input_ if isinstance(input_, Mapping) else {})
    scopes: dict[str, list[str]] = {}
    for kind in _open_kinds(graph):
        for value in (fields.get(f"{kind}{ending}") for ending in ("", "s", "_id", "_ids")):
            if texts := _texts([value] if isinstance(value, str) else value):
                scopes[kind] = texts
                break
    return scopes


def default_scopes(graph: PhaseGraph, metadata: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Return the default scopes of an imported run, by kind; {} for any other run."""
    if metadata is None or imported_id(metadata) is None:
        return {}
    return {kind: [scope] for kind, scope in DEFAULT_SCOPES.items() if kind in _open_kinds(graph)}


def named_scopes(graph: PhaseGraph, input_: Any, metadata: Mapping[str, Any] | None) -> set[str]:
    """Return the scopes in the input and the default scopes of a run, spelled as in the log."""
    return {
        graph.scope_kinds[kind].spelled(scope)
        for scopes in (scopes_in_input(graph, input_), default_scopes(graph, metadata))
        for kind, names in scopes.items()
        for scope in names
    }


def _open_kinds(graph: PhaseGraph) -> list[str]:
    return [kind for kind, declared in graph.scope_kinds.items() if declared.fixed is None]


def _texts(value: Any) -> list[str]:
    texts = cast("list[Any]", value if isinstance(value, list) else [])
    return [text for text in texts if isinstance(text, str) and text]
