"""Fixtures of the command line: a store with rows of every kind."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import orjson
import pytest
from typer.testing import CliRunner

from store import open_store
from store.cli.app import app
from store.errors import StoreError
from store.models import RolloutConfig, TraceStatus
from store.runtime import ids
from store.testing import ManualClock
from store.testing.samples import make_llm, make_prompt, make_span
from tests import postgres
from tests.command_line import logging_restored
from tests.conftest import POSTGRES, SQLITE

ON_BOTH = pytest.mark.parametrize("durable_url", [SQLITE, POSTGRES], indirect=True)
"""Runs a test on both databases. The others use SQLite: a command's output does not depend on the database."""

# Typer reads FORCE_COLOR when this module is imported, which must be before a test sets the variable.
import_module("typer.rich_utils")

# Wide enough that no help text is broken in the middle of what a test looks for.
WIDTH = "200"


@dataclass(frozen=True, slots=True)
class Printed:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON document."""
        assert self.code in {0, 3}, self.err
        return orjson.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        """Standard output as one JSON document per line."""
        assert self.code == 0, self.err
        return [orjson.loads(line) for line in self.out.splitlines()]

    @property
    def table(self) -> list[dict[str, str]]:
        """Standard output as rows by title."""
        assert self.code == 0, self.err
        if not self.out:
            return []
        titles, *rows = (line.split("\t") for line in self.out.splitlines())
        return [dict(zip(titles, row, strict=True)) for row in rows]


class Rollbook(Protocol):
    """A function that runs a command in this process; `terminal` makes it believe that a person is looking."""

    def __call__(self, *arguments: str, db: str | None = None, terminal: bool = False) -> Printed: ...


@dataclass(frozen=True, slots=True)
class Filled:
    """A store and what is in it: a rollout that was retried and succeeded, two that wait, one that was cancelled."""

    url: str
    retried: str
    waiting: list[str]
    cancelled: str
    attempts: list[str]
    """Of the retried rollout, in order."""
    prompts: str
    """Resources of two versions."""


@pytest.fixture
def durable_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that does not exist yet: a file, or what `ON_BOTH` says."""
    if getattr(request, "param", "sqlite") == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"sqlite:///{tmp_path / 'rollbook.db'}"


@pytest.fixture
def rollbook(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> Rollbook:
    """The command line, on the filled store unless another is named."""
    return runner(filled.url, monkeypatch)


@pytest.fixture
def bare(make_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Rollbook:
    """The command line without any store."""
    return runner(make_url("none.db"), monkeypatch)


def runner(url: str, monkeypatch: pytest.MonkeyPatch) -> Rollbook:
    def run(*arguments: str, db: str | None = None, terminal: bool = False) -> Printed:
        monkeypatch.setenv("ROLLBOOK_DB", db or url)
        monkeypatch.setenv("COLUMNS", WIDTH)
        monkeypatch.setenv("TERM", "xterm-256color")
        for name in ("FORCE_COLOR", "NO_COLOR", "ROLLBOOK_DEBUG"):
            monkeypatch.delenv(name, raising=False)
        if terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
        with logging_restored():
            result = CliRunner().invoke(app, arguments, prog_name="rollbook")
        if result.exception is not None and not isinstance(result.exception, SystemExit | StoreError):
            raise result.exception
        return Printed(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A filled file that tests get copies of."""
    return asyncio.run(fill(f"sqlite:///{tmp_path_factory.mktemp('cli') / 'original.db'}"))


@pytest.fixture
def filled(durable_url: str, request: pytest.FixtureRequest) -> Filled:
    """A filled store."""
    if not durable_url.startswith("sqlite"):
        return asyncio.run(fill(durable_url))
    return copied(request.getfixturevalue("original"), durable_url)


@pytest.fixture
def filled_file(original: Filled, tmp_path: Path) -> Filled:
    """A filled store in a file, for what does not depend on the database."""
    return copied(original, f"sqlite:///{tmp_path / 'file.db'}")


def copied(original: Filled, url: str) -> Filled:
    """Return a copy of a filled file."""
    # Closing left nothing in the write-ahead log.
    shutil.copy(urlsplit(original.url).path[1:], urlsplit(url).path[1:])
    return replace(original, url=url)


async def fill(url: str) -> Filled:
    with pytest.MonkeyPatch.context() as patch:
        # A minute between two ids, so that a few digits tell them apart.
        patch.setattr(ids, "rising", ids.Rising(count(step=60 * 10**9).__next__))
        return await _fill(url)


async def _fill(url: str) -> Filled:
    clock = ManualClock()
    async with await open_store(url, clock=clock, scan_debounce_seconds=0) as store:
        prompts = (await store.add_resources(make_prompt())).resources_id
        await store.update_resources(prompts, make_llm())
        config = RolloutConfig(unresponsive_seconds=3, max_attempts=2, retry_condition=["unresponsive"])
        metadata = {"rollbook.group": "night", "rollbook.step": 7}
        retried = await store.enqueue_rollout({"question": "why"}, "train", config=config, metadata=metadata)
        waiting = [await store.enqueue_rollout({"question": number}, "val") for number in range(2)]
        cancelled = await store.enqueue_rollout("stop me", "test")
        await store.update_rollout(cancelled.rollout_id, status="cancelled")
        clock.advance(1)
        lost = await store.dequeue_rollout("worker-1")
        assert lost
        clock.advance(3.5)
        await store.query_rollouts(limit=0)
        for rollout in waiting:
            await store.update_rollout(rollout.rollout_id, status="preparing")
        claimed = await store.dequeue_rollout("worker-2")
        assert claimed
        assert claimed.rollout_id == retried.rollout_id
        attempt = claimed.attempt
        root = make_span(attempt, 1, name="agent", span_id="a" * 16)
        usage = {"gen_ai.response.model": "small", "gen_ai.usage.input_tokens": 1200, "gen_ai.usage.output_tokens": 33}
        below = make_span(attempt, 2, name="llm", span_id="b" * 16, parent_id="a" * 16, attributes=usage)
        failed = TraceStatus(status_code="ERROR", description="no such tool")
        tool = make_span(attempt, 3, name="tool", span_id="c" * 16, parent_id="a" * 16, status=failed)
        reward = {"agentlightning.reward.0.value": 0.75}
        last = make_span(attempt, 4, name="agentlightning.annotation", span_id="d" * 16, attributes=reward)
        clock.advance(0.25)
        await store.add_many_spans([root, below, tool, last])
        clock.advance(0.5)
        await store.update_attempt(retried.rollout_id, attempt.attempt_id, status="succeeded")
        for rollout in waiting:
            await store.update_rollout(rollout.rollout_id, status="queuing")
        return Filled(
            url,
            retried.rollout_id,
            [rollout.rollout_id for rollout in waiting],
            cancelled.rollout_id,
            [lost.attempt.attempt_id, attempt.attempt_id],
            prompts,
        )


def execute(url: str, sql: str) -> list[str]:
    """Run a statement behind the store's back and return the first column of its rows."""
    if not url.startswith("sqlite"):
        partition = urlsplit(url).query.rpartition("partition=")[2]
        return postgres.execute(url, f"SET search_path TO rollbook_{partition}; {sql};").splitlines()
    with closing(sqlite3.connect(urlsplit(url).path[1:], isolation_level=None)) as connection:
        return [str(row[0]) for row in connection.execute(sql).fetchall()]


COMMAND = [sys.executable, "-c", "from store.cli import main; main()"]
"""The beginning of a command line that runs `rollbook` as a process of its own."""


def without_waits(lines: Iterable[str]) -> Iterator[str]:
    """Leave out what runners log while the algorithm on a slow machine has not published the first resources yet."""
    return (line for line in lines if " waits, because its agent needs " not in line)


def environment(url: str, **further: str) -> dict[str, str]:
    """Return the environment in which that process works on a store."""
    inherited = {name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "NO_COLOR"}}
    return inherited | {"ROLLBOOK_DB": url, "COLUMNS": "100", "TERM": "xterm-256color"} | further


@pytest.fixture
def make_url(tmp_path: Path) -> Callable[[str], str]:
    """A function from a name to the URL of a file that does not exist."""
    return lambda name: f"sqlite:///{tmp_path / name}"
