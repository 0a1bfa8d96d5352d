"""The contract on every shipped store: the fixture `store` has one value for each backend."""

from __future__ import annotations

from collections import Counter

from store.testing.contract import StoreContract


class TestStore(StoreContract):
    """The contract, on each backend in turn."""


def test_no_promise_hides_another_of_the_same_name() -> None:
    parts = [part for part in StoreContract.__mro__ if part is not StoreContract]
    names = Counter(name for part in parts for name in vars(part) if name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []
