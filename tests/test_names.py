"""Every name of Agent-lightning that the documentation lists can be imported, or its replacement can."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

import pytest

from tests.documented_names import PAGE, Replaced, Same, listed, replaced, same

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
    found = import_module(first)
    so_far = first
    for name in others:
        so_far = f"{so_far}.{name}"
        if not hasattr(found, name):
            try:
                import_module(so_far)
            except ModuleNotFoundError as error:
                raise AttributeError(f"{so_far} does not exist") from error
        found = getattr(found, name)
    return found


def test_the_lists_are_complete_and_without_repetition() -> None:
    assert len(listed()) > 150
    assert listed() >= FAMILIAR
    counts = Counter([each.name for each in same()] + [name for row in replaced() for name in row.names])
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("each", same(), ids=lambda each: each.name)
def test_a_name_that_is_the_same_can_be_imported(each: Same) -> None:
    assert hasattr(import_module(each.module), each.name)


@pytest.mark.parametrize("row", replaced(), ids=lambda row: row.names[0])
def test_a_name_that_is_not_here_has_a_replacement(row: Replaced) -> None:
    assert row.paths or row.links
    for path in row.paths:
        resolve(path)
    for link in row.links:
        assert (PAGE.parent / link).exists()


def test_a_replacement_that_does_not_exist_is_found() -> None:
    with pytest.raises(AttributeError, match=r"store\.training\.Absent"):
        resolve("store.training.Absent")
    with pytest.raises(AttributeError, match=r"store\.absent"):
        resolve("store.absent.Name")
