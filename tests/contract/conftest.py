"""Fixtures of the contract tests. On Postgres, all tests of a process share a partition, which is emptied each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import postgres
from tests.contract.emptied import EmptiedPartition, emptied_partition


@pytest.fixture(scope="session")
def shared_partition(postgres_server: str) -> Iterator[EmptiedPartition]:
    """The partition that the contract tests of this process share."""
    with emptied_partition(postgres_server) as partition:
        yield partition


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, postgres_server: str) -> Iterator[str]:
    """The URL of the shared partition, whose store is empty and has the same id in each test.

    On a server that is not ours, each test gets a new partition, because only a superuser may empty one.
    """
    if postgres.EXTERNAL_URL:
        url = postgres.with_partition(postgres_server)
        yield url
        postgres.drop_partition(url)
        return
    partition: EmptiedPartition = request.getfixturevalue("shared_partition")
    yield partition.url
    partition.empty()
