"""Every name of Agent-lightning that the documentation lists can be imported, or its replacement can."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

import pytest

from tests.documented_names import PAGE, listed, replaced, same

# The names that Agent-lightning's own pages import most.
FAMILIAR = {
    *("Adapter", "AgentOpsTracer", "Dataset", "LightningSpanProcessor", "LitAgent", "OtelTracer", "Trainer"),
    *("Collection", "CollectionBasedLightningStore", "KeyValue", "LightningCollections", "Queue"),
}


def resolve(path: str) -> Any:
    """Return what a dotted path names, a module or an attribute of anything.

    Raises:
        AttributeError: nothing.
    """
    first, *others = path.split(".")
    value = import_module(first)
    so_far = first
    for name in others:
        so_far = f"{so_far}.{name}"
        if not hasattr(value, name):
            try:
                import_module(so_far)
            except ModuleNotFoundError as error:
                raise AttributeError(f"{so_far} does not exist") from error
        value = getattr(value, name)
    return value


def test_the_lists_are_complete_and_without_repetition() -> None:
    assert len(listed()) > 150
    assert listed() >= FAMILIAR
    counts = Counter([entry.name for entry in same()] + [name for row in replaced() for name in row.names])
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_listed_name_can_be_imported_from_its_module() -> None:
    missing = [
        f"{entry.module}.{entry.name}" for entry in same() if not hasattr(import_module(entry.module), entry.name)
    ]
    assert missing == []


def test_every_replaced_name_has_a_replacement_that_exists() -> None:
    failures: list[str] = []
    for row in replaced():
        if not row.paths and not row.links:
            failures.append(f"{row.names}: no replacement")
        for path in row.paths:
            try:
                resolve(path)
            except AttributeError as error:
                failures.append(f"{row.names}: {error}")
        failures += [f"{row.names}: {link}" for link in row.links if not (PAGE.parent / link).exists()]
    assert failures == []


def test_a_replacement_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(AttributeError, match=r"store\.training\.Absent"):
        resolve("store.training.Absent")
    with pytest.raises(AttributeError, match=r"store\.absent"):
        resolve("store.absent.Name")
