"""The stores of the contract: on Postgres, all tests of a process use one partition, which is emptied in between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.emptied import EmptiedPartition, emptied_partition


@pytest.fixture(scope="session")
def partition_of_all(postgres_server: str) -> Iterator[EmptiedPartition]:
    """The partition."""
    with emptied_partition(postgres_server) as partition:
        yield partition


@pytest.fixture
def postgres_url(partition_of_all: EmptiedPartition) -> Iterator[str]:
    """Its URL; the store in it is as new."""
    yield partition_of_all.url
    partition_of_all.empty()
