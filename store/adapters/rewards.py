"""Which reward belongs to which call: what a reward says of itself, else by one of four policies.

A reward that stands on the span of a call, or that links to one, goes there and nowhere else. All others are matched:

- `first_occurrence`: in the order of time; each goes to the latest call that had ended by then and has none yet. So
  a second reward in a row goes back to the call before.
- `first_sibling`: the same among the children of one span.
- `final_only`: the last reward goes to the last call, the others to none.
- `broadcast`: the last reward goes to every call that has none of its own.

No call gets two, and no reward goes to two calls but by `broadcast`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol, cast

from store.adapters.nested import below, indexed
from store.adapters.tree import TraceTree
from store.models import Span
from store.semconv import LINK, OPERATION_NAME, OPERATION_SPAN, REWARD_SPAN, summarise

__all__ = [
    "Matching",
    "Reward",
    "RewardMatchPolicy",
    "Rewarded",
    "find_rewards",
    "is_reward",
    "match",
    "match_numbered",
]

_LINKED_MISSING: Final = "linked_call_missing"
_TAKEN: Final = "call_has_a_reward"
_NO_CALL: Final = "no_call_before"
_NOT_FINAL: Final = "not_the_last_reward"


class RewardMatchPolicy(StrEnum):
    """How a reward that names no call finds one; the module says what each does."""

    FIRST_SIBLING = "first_sibling"
    FIRST_OCCURRENCE = "first_occurrence"
    FINAL_ONLY = "final_only"
    BROADCAST = "broadcast"


class Rewarded(Protocol):
    """What matching has to know of a call."""

    @property
    def node(self) -> TraceTree:
        """Where the agent made it."""
        ...

    @property
    def nodes(self) -> Sequence[TraceTree]:
        """All that recorded it."""
        ...

    @property
    def sequence_id(self) -> int:
        """Its number among the spans of its rollout."""
        ...


class Reward(NamedTuple):
    """A span that says how good something was."""

    node: TraceTree
    dimensions: tuple[tuple[str, float], ...]
    """Name and value, the primary one first; every value is finite."""
    links: tuple[tuple[str, Any], ...]
    """Key and value of what the rewarded span has, all of which must match."""

    @property
    def value(self) -> float:
        """The primary dimension."""
        return self.dimensions[0][1]


@dataclass(slots=True)
class Matching:
    """The outcome: by the number of the call its reward, and the rewards left over with the reason."""

    given: dict[int, Reward] = field(default_factory=dict[int, Reward])
    left: list[tuple[Reward, str]] = field(default_factory=list[tuple[Reward, str]])


def is_reward(span: Span) -> bool:
    """Whether a span is a reward, or the work of finding one: calls made below it are a judge's."""
    if span.name == REWARD_SPAN or (span.name == OPERATION_SPAN and span.attributes.get(OPERATION_NAME) == REWARD_SPAN):
        return True
    return bool(summarise(span.name, span.attributes).rewards)


def find_rewards(nodes: Iterable[TraceTree]) -> list[Reward]:
    """Return the rewards among the nodes, in the order of time."""
    found = [
        Reward(node, said, _links(node.span.attributes))
        for node in nodes
        if (said := summarise(node.span.name, node.span.attributes).rewards)
    ]
    return sorted(found, key=lambda reward: reward.node.place)


def match(calls: Sequence[Rewarded], rewards: Sequence[Reward], policy: RewardMatchPolicy) -> Matching:
    """Return which call gets which reward.

    Args:
        calls: in the order of time.
        rewards: in the order of time.
        policy: for rewards that name no call.
    """
    matching, free = _explicit(calls, rewards)
    match policy:
        case RewardMatchPolicy.FIRST_OCCURRENCE:
            _look_back(list(enumerate(calls)), free, matching)
        case RewardMatchPolicy.FIRST_SIBLING:
            _among_siblings(calls, free, matching)
        case RewardMatchPolicy.FINAL_ONLY:
            _final(len(calls) - 1, free, matching)
        case RewardMatchPolicy.BROADCAST:
            _broadcast(len(calls), free, matching)
    return matching


def match_numbered(calls: Sequence[Rewarded], rewards: Sequence[Reward]) -> Matching:
    """As `first_occurrence`, by sequence ids alone: a reward goes to a call with a smaller one.

    For spans whose clocks differ, as those of a proxy on another machine.

    Args:
        calls: in the order of their sequence ids.
        rewards: in any order.
    """
    matching, free = _explicit(calls, sorted(rewards, key=lambda reward: reward.node.span.sequence_id))
    for reward in free:
        number = reward.node.span.sequence_id
        waiting = (place for place in reversed(range(len(calls))) if place not in matching.given)
        _give(next((place for place in waiting if calls[place].sequence_id < number), None), reward, matching)
    return matching


def _explicit(calls: Sequence[Rewarded], rewards: Sequence[Reward]) -> tuple[Matching, list[Reward]]:
    """Give what names its call, and return what does not."""
    matching, free = Matching(), list[Reward]()
    by_node = {id(node): place for place, call in enumerate(calls) for node in call.nodes}
    for reward in rewards:
        own = by_node.get(id(reward.node))
        if own is None and not reward.links:
            free.append(reward)
            continue
        named = [own] if own is not None else _linked(calls, reward.links)
        unrewarded = [place for place in named if place not in matching.given]
        _give(unrewarded[-1] if unrewarded else None, reward, matching, _TAKEN if named else _LINKED_MISSING)
    return matching, free


def _linked(calls: Sequence[Rewarded], links: tuple[tuple[str, Any], ...]) -> list[int]:
    """Return the calls a link leads to; one to a span above calls leads to these."""
    direct = [place for place, call in enumerate(calls) if any(_has(node, links) for node in call.nodes)]
    return direct or [place for place, call in enumerate(calls) if any(_has(node, links) for node in _above(call.node))]


def _above(node: TraceTree) -> Iterable[TraceTree]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def _has(node: TraceTree, links: tuple[tuple[str, Any], ...]) -> bool:
    ids = {"trace_id": node.span.trace_id, "span_id": node.span.span_id}
    return all((ids[key] if key in ids else node.span.attributes.get(key)) == value for key, value in links)


def _links(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    pairs: list[tuple[str, Any]] = []
    for link in indexed(below(attributes, LINK)):
        if isinstance(link, Mapping):
            said = cast("Mapping[str, Any]", link)
            key = said.get("key_match")
            if isinstance(key, str) and "value_match" in said:
                pairs.append((key, said["value_match"]))
    return tuple(pairs)


def _look_back(calls: Sequence[tuple[int, Rewarded]], rewards: Iterable[Reward], matching: Matching) -> None:
    """Give each reward to the latest call that ended before it; both come in the order of time."""
    ahead = iter([*((place, call) for place, call in calls if place not in matching.given), None])
    upcoming = next(ahead)
    waiting: list[tuple[int, Rewarded]] = []
    for reward in rewards:
        while upcoming is not None and upcoming[1].node.place < reward.node.place:
            waiting.append(upcoming)
            upcoming = next(ahead)
        chosen = next(
            (at for at in reversed(range(len(waiting))) if waiting[at][1].node.end_time <= reward.node.start_time), None
        )
        _give(None if chosen is None else waiting.pop(chosen)[0], reward, matching)


def _among_siblings(calls: Sequence[Rewarded], rewards: Iterable[Reward], matching: Matching) -> None:
    families: dict[int, tuple[list[tuple[int, Rewarded]], list[Reward]]] = {}
    for place, call in enumerate(calls):
        families.setdefault(id(call.node.parent), ([], []))[0].append((place, call))
    for reward in rewards:
        families.setdefault(id(reward.node.parent), ([], []))[1].append(reward)
    for siblings, theirs in families.values():
        _look_back(siblings, theirs, matching)


def _final(last: int, rewards: Sequence[Reward], matching: Matching) -> None:
    if rewards:
        _give(last if last >= 0 and last not in matching.given else None, rewards[-1], matching)
    matching.left += [(reward, _NOT_FINAL) for reward in rewards[:-1]]


def _broadcast(count: int, rewards: Sequence[Reward], matching: Matching) -> None:
    if rewards and not count:
        _give(None, rewards[-1], matching)
    elif rewards:
        matching.given = dict.fromkeys(range(count), rewards[-1]) | matching.given
    matching.left += [(reward, _NOT_FINAL) for reward in rewards[:-1]]


def _give(place: int | None, reward: Reward, matching: Matching, otherwise: str = _NO_CALL) -> None:
    if place is None:
        matching.left.append((reward, otherwise))
    else:
        matching.given[place] = reward
