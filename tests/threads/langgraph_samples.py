"""Small LangGraph graphs, and checkpoints without a graph."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Iterable
from importlib import import_module
from typing import Annotated, Any, Final, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig

from store.integrations.langgraph import RollbookSaver
from store.interface.store import Store
from store.models.threads import ThreadCheckpoint, ThreadWrite
from tests.conftest import POSTGRES, SQLITE

ON_BOTH: Final = pytest.mark.parametrize("store_url", [SQLITE, POSTGRES], indirect=True)
"""For tests of SQL. The other tests use SQLite."""

# Its types are not there for checkers, and so not those of the graphs.
_graph: Any = import_module("langgraph.graph")


class State(TypedDict):
    """What the graphs pass on: what each node said, in order."""

    said: Annotated[list[str], operator.add]


Said = Callable[[State], Awaitable[dict[str, Any]]]


def saying(name: str, ran: list[str] | None = None) -> Said:
    """Return a node that says its name, and notes in a list that it ran."""

    async def node(_: State) -> dict[str, Any]:
        if ran is not None:
            ran.append(name)
        return {"said": [name]}

    return node


def line(saver: RollbookSaver | None, nodes: Iterable[tuple[str, Callable[..., Any]]]) -> Any:
    """Return a graph of nodes one after the other."""
    builder = _graph.StateGraph(State)
    before = _graph.START
    for name, node in nodes:
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    builder.add_edge(before, _graph.END)
    return builder.compile(checkpointer=saver)


def side_by_side(saver: RollbookSaver, a: Said, b: Said) -> Any:
    """Return the graph of A and B, side by side, and then C."""
    builder = _graph.StateGraph(State)
    for name, node in (("A", a), ("B", b), ("C", saying("C"))):
        builder.add_node(name, node)
    for name in "AB":
        builder.add_edge(_graph.START, name)
    builder.add_edge(["A", "B"], "C")
    builder.add_edge("C", _graph.END)
    return builder.compile(checkpointer=saver)


def abc(saver: RollbookSaver, ran: list[str] | None = None) -> Any:
    """Return the graph A → B → C."""
    return line(saver, [(name, saying(name, ran)) for name in "ABC"])


def config(thread_id: str, **more: Any) -> RunnableConfig:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread_id, **more}}


def checkpoint(number: int, thread_id: str = "t", ns: str = "", **more: Any) -> ThreadCheckpoint:
    """Return a checkpoint whose id rises with its number."""
    fields: dict[str, Any] = {
        "parent_id": None,
        "checkpoint": ("json", b"{}"),
        "values": {"said": ("msgpack", f"value {number}".encode())},
        "metadata": {"step": number, "source": "loop"},
    }
    return ThreadCheckpoint(thread_id, ns, f"cp-{number:04}", **(fields | more))


def write(number: int, task_id: str = "task", value: bytes = b"written", channel: str = "said") -> ThreadWrite:
    """Return a write of a task."""
    return ThreadWrite(task_id, number, channel, ("msgpack", value))


async def ids(store: Store, thread_id: str = "t") -> list[str]:
    """Return the ids of a thread's checkpoints, the greatest first."""
    return [place.checkpoint_id for place in await store.threads.list_places(thread_id)]


def channel_of(state: ThreadCheckpoint | None) -> bytes:
    """Return the bytes of the channel that every checkpoint has."""
    assert state is not None
    return state.values["said"][1]
