"""The spans of one attempt as a tree.

Virtual nodes replace missing spans, and calls can be moved below the span of the agent that made them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from store.adapters.intake import SpanPlace, Timed, sort_in
from store.models import Span
from store.semconv import OPERATION_INPUT, VIRTUAL_SPAN

__all__ = ["TraceTree", "agent_name", "tree_of"]

VIRTUAL_ROOT: Final = "virtual-root"

_NO_PARENT: Final = "0" * 16
"""The parent id that some exporters write for spans without a parent."""

_NAMES: Final = ("recipient_agent_type", "langchain.chain.type", "executor.id")
"""Attributes in which AutoGen, LangGraph and agent-framework, in this order, record the name of an agent."""


class TraceTree:
    """A span and its descendants. Children are in the order of time.

    A virtual node replaces a missing parent, and a virtual root joins several spans without a parent. If the parent ids
    of spans form a cycle, the span with the smallest sequence id becomes a root.
    """

    __slots__ = ("children", "end_time", "parent", "span", "start_time")

    def __init__(self, span: Span, start_time: float, end_time: float) -> None:
        self.span = span
        self.start_time = start_time
        """The start in seconds. `Timed` describes the start of a span without a recorded start."""
        self.end_time = end_time
        self.children: list[TraceTree] = []
        self.parent: TraceTree | None = None

    @classmethod
    def from_spans(cls, spans: Iterable[Any]) -> TraceTree:
        """Return the tree of spans, which may be in any order. A virtual root joins the trees of several attempts.

        Raises:
            Invalid: `spans` is not a sequence of spans.
        """
        attempts, _ = sort_in(spans)
        roots = [tree_of(attempt.spans) for attempt in attempts]
        return roots[0] if len(roots) == 1 else _virtual(VIRTUAL_ROOT, VIRTUAL_ROOT, roots)

    @property
    def id(self) -> str:
        """The span's id."""
        return self.span.span_id

    @property
    def place(self) -> SpanPlace:
        """The sort key of the span among the spans of its attempt."""
        return SpanPlace(self.start_time, self.span.sequence_id, self.span.span_id)

    def traverse(self) -> Iterator[TraceTree]:
        """Yield this node and its descendants: each node before its children, and children in the order of time."""
        waiting: list[TraceTree] = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)

    def find_id(self, span_id: str) -> TraceTree | None:
        """Return the node of a span, or None."""
        return next((node for node in self.traverse() if node.id == span_id), None)

    def agent_name(self) -> str | None:
        """Return the name of the agent that this span describes, or None if the span does not describe an agent."""
        return agent_name(self.span.name, self.span.attributes)

    def is_below(self, other: TraceTree) -> bool:
        """Return whether this node is the other node or one of its descendants."""
        node: TraceTree | None = self
        while node is not None and node is not other:
            node = node.parent
        return node is not None

    def repair_hierarchy(self, may_hold: Callable[[TraceTree], bool] = lambda _: True) -> None:
        """Move each span below the shortest span that encloses it in time.

        Only descendants of the span's parent are considered. An enclosing span starts no later than the enclosed span,
        ends no earlier, and is longer. The repair is needed because the instrumentation of an LLM client often records
        calls as children of the session instead of the agent that made the calls.

        Args:
            may_hold: function that returns whether a span may get new children. It should return False for calls,
                because a call should not become the parent of a concurrent call.
        """
        nodes = list(self.traverse())
        first = {id(node): number for number, node in enumerate(nodes)}
        last: dict[int, int] = {}
        for node in reversed(nodes):
            last[id(node)] = max((last[id(child)] for child in node.children), default=first[id(node)])

        def was_below(node: TraceTree, above: TraceTree) -> bool:
            return first[id(above)] < first[id(node)] <= last[id(above)]

        movable = sorted(
            (node for node in nodes if node.span.name not in {VIRTUAL_SPAN, VIRTUAL_ROOT}),
            key=lambda node: node.place,
        )
        ahead = iter([*(node for node in movable if may_hold(node)), None])
        upcoming = next(ahead)
        # Only spans that have begun and have not ended can enclose the next span. Only these few spans are searched.
        open_spans: list[TraceTree] = []
        for node in movable:
            while upcoming is not None and upcoming.start_time <= node.start_time:
                open_spans.append(upcoming)
                upcoming = next(ahead)
            open_spans = [holder for holder in open_spans if holder.end_time >= node.start_time]
            parent = node.parent
            if parent is not None and len(parent.children) > 1:
                candidates = (
                    holder
                    for holder in open_spans
                    if _encloses(holder, node) and was_below(holder, parent) and not was_below(holder, node)
                )
                tightest = sorted(candidates, key=lambda holder: (holder.end_time - holder.start_time, holder.place))
                holder = next((holder for holder in tightest if not holder.is_below(node)), None)
                if holder is not None:
                    _move(node, holder)

    def __repr__(self) -> str:
        return f"TraceTree({self.span.name!r}, {self.id!r}, children={len(self.children)})"


def tree_of(spans: list[Timed]) -> TraceTree:
    """Return the tree of the spans of one attempt. The ids of the spans must be distinct."""
    nodes = {timed.span.span_id: TraceTree(timed.span, timed.start, timed.end) for timed in spans}
    roots: list[TraceTree] = []
    orphans: dict[str, list[TraceTree]] = {}
    heads = _heads_of_cycles(nodes)
    for node in nodes.values():
        parent_id = node.span.parent_id
        if not parent_id or parent_id == _NO_PARENT or node.id in heads:
            roots.append(node)
        elif parent_id in nodes:
            _attach(node, nodes[parent_id])
        else:
            orphans.setdefault(parent_id, []).append(node)
    roots += [_virtual(parent_id, VIRTUAL_SPAN, children) for parent_id, children in orphans.items()]
    roots.sort(key=lambda root: root.place)
    return roots[0] if len(roots) == 1 else _virtual(VIRTUAL_ROOT, VIRTUAL_ROOT, roots)


def agent_name(name: str, attributes: Mapping[str, Any]) -> str | None:
    """Return the name of the agent that a span describes, or None.

    The function reads the attributes of the frameworks that Agent-lightning 0.3 supports.
    """
    agent = attributes.get("agent.name")
    if agent is None and attributes.get("agentops.span.kind") == "agent":
        agent = attributes.get("operation.name")
    for key in _NAMES:
        agent = attributes.get(key) if agent is None else agent
    if agent is None and attributes.get("type") == "agent":
        agent = attributes.get(f"{OPERATION_INPUT}.name")
    if agent is None and name.startswith("langchain.Chain."):
        agent = attributes.get("lc_name")
    return agent if isinstance(agent, str) else None


def _heads_of_cycles(nodes: Mapping[str, TraceTree]) -> set[str]:
    """Return, for each cycle that parent ids form, the id of the span with the smallest sequence id."""
    heads: set[str] = set()
    visited: set[str] = set()
    for start in nodes:
        path: dict[str, int] = {}
        current: str | None = start
        while current is not None and current in nodes and current not in visited and current not in path:
            path[current] = len(path)
            current = nodes[current].span.parent_id
        if current is not None and current in path:
            cycle = list(path)[path[current] :]
            heads.add(min(cycle, key=lambda span_id: (nodes[span_id].span.sequence_id, span_id)))
        visited.update(path)
    return heads


def _virtual(span_id: str, name: str, children: list[TraceTree]) -> TraceTree:
    first = children[0].span if children else None
    start = min((child.start_time for child in children), default=0.0)
    end = max((child.end_time for child in children), default=start)
    span = Span.from_attributes(
        attributes={},
        rollout_id=first.rollout_id if first else "",
        attempt_id=first.attempt_id if first else "",
        sequence_id=first.sequence_id if first else 0,
        trace_id=first.trace_id if first else "0" * 32,
        span_id=span_id,
        name=name,
        start_time=start,
        end_time=end,
    )
    node = TraceTree(span, start, end)
    for child in children:
        _attach(child, node)
    return node


def _attach(node: TraceTree, parent: TraceTree) -> None:
    node.parent = parent
    parent.children.append(node)


def _move(node: TraceTree, holder: TraceTree) -> None:
    if node.parent is not None:
        node.parent.children.remove(node)
    _attach(node, holder)
    holder.children.sort(key=lambda child: child.place)


def _encloses(outer: TraceTree, inner: TraceTree) -> bool:
    return (
        outer.start_time <= inner.start_time
        and outer.end_time >= inner.end_time
        and outer.end_time - outer.start_time > inner.end_time - inner.start_time
    )
