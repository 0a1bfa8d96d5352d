"""Assignment of rewards to model calls.

A reward that is recorded on the span of a call, or that links to a call, belongs to that call. A policy assigns all
other rewards:

- `first_occurrence`: rewards are processed in the order of time. Each reward goes to the latest call that ended before
  the reward and has no reward yet. So if two rewards follow two calls, the second reward goes to the first call.
- `first_sibling`: as `first_occurrence`, but a reward can only go to a call whose span has the same parent.
- `final_only`: the last reward goes to the last call. The other rewards are not assigned.
- `broadcast`: the last reward goes to every call that has no other reward. The other rewards are not assigned.

No call gets two rewards, and only `broadcast` assigns one reward to several calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, Final, NamedTuple, Protocol, cast

from store.adapters.tree import TraceTree
from store.errors import Invalid
from store.model_calls.nested import below, indexed
from store.models import Score, Span
from store.semconv import LINK, OPERATION_NAME, OPERATION_SPAN, PRIMARY, REWARD_SPAN, summarise

__all__ = [
    "Matching",
    "Reward",
    "RewardMatchPolicy",
    "Rewarded",
    "find_rewards",
    "is_reward",
    "match",
    "match_numbered",
    "rewards_of_scores",
]

_LINKED_MISSING: Final = "linked_call_missing"
_TAKEN: Final = "call_has_a_reward"
_NO_CALL: Final = "no_call_before"
_NOT_FINAL: Final = "not_the_last_reward"
_AFTER_ALL: Final = 2**63 - 1
"""A sequence id behind those of all spans."""


class RewardMatchPolicy(StrEnum):
    """The policy for rewards that are neither on the span of a call nor link to a call; see the module docstring."""

    FIRST_SIBLING = "first_sibling"
    FIRST_OCCURRENCE = "first_occurrence"
    FINAL_ONLY = "final_only"
    BROADCAST = "broadcast"


class Rewarded(Protocol):
    """A call that can get a reward. The protocol lists the properties that the assignment needs."""

    @property
    def node(self) -> TraceTree:
        """The tracer's span of the call. If there is none, the proxy's span."""
        ...

    @property
    def nodes(self) -> Sequence[TraceTree]:
        """All spans that recorded the call."""
        ...

    @property
    def sequence_id(self) -> int:
        """The sequence id of the call."""
        ...


class Reward(NamedTuple):
    """A span with a reward."""

    node: TraceTree
    dimensions: tuple[tuple[str, float], ...]
    """The names and values of the reward, with the primary value first. Every value is finite."""
    links: tuple[tuple[str, Any], ...]
    """The attribute names and values that the rewarded span must have; `trace_id` and `span_id` mean the span's ids."""

    @property
    def value(self) -> float:
        """The primary value."""
        return self.dimensions[0][1]


@dataclass(slots=True)
class Matching:
    """Result of the assignment: the reward of each call by the call's index, and unassigned rewards with reasons."""

    by_call: dict[int, Reward] = field(default_factory=dict[int, Reward])
    left: list[tuple[Reward, str]] = field(default_factory=list[tuple[Reward, str]])


def is_reward(span: Span) -> bool:
    """Return whether a span contains a reward or computes a reward.

    Calls that are descendants of such a span are calls of a judge, a model that evaluates the agent.
    """
    if span.name == REWARD_SPAN or (span.name == OPERATION_SPAN and span.attributes.get(OPERATION_NAME) == REWARD_SPAN):
        return True
    return bool(summarise(span.name, span.attributes).rewards)


def find_rewards(nodes: Iterable[TraceTree]) -> list[Reward]:
    """Return the rewards among the nodes, in the order of time."""
    rewards = [
        Reward(node, dimensions, _links(node.span.attributes))
        for node in nodes
        if (dimensions := summarise(node.span.name, node.span.attributes).rewards)
    ]
    return sorted(rewards, key=lambda reward: reward.node.place)


def rewards_of_scores(scores: Iterable[Score]) -> dict[tuple[str, str], list[Reward]]:
    """Return the scores with a value as rewards after the ends of their attempts, by rollout id and attempt id.

    Raises:
        Invalid: an attempt has several scores.
    """
    rewards: dict[tuple[str, str], list[Reward]] = {}
    for score in scores:
        if score.value is None:
            continue
        key = score.rollout_id, score.attempt_id
        if key in rewards:
            raise Invalid("scores", f"attempt {score.attempt_id} has several scores; query one reward_version")
        ids: dict[str, Any] = {
            "rollout_id": score.rollout_id,
            "attempt_id": score.attempt_id,
            "span_id": f"score {score.number}",
        }
        span = Span.from_attributes(**ids, sequence_id=_AFTER_ALL, name=REWARD_SPAN, attributes={})
        further = [(name, value) for name, value in score.dimensions.items() if name != PRIMARY]
        rewards[key] = [Reward(TraceTree(span, inf, inf), ((PRIMARY, score.value), *further), ())]
    return rewards


def match(calls: Sequence[Rewarded], rewards: Sequence[Reward], policy: RewardMatchPolicy) -> Matching:
    """Return the assignment of rewards to calls.

    Args:
        calls: the calls, in the order of time.
        rewards: the rewards, in the order of time.
        policy: the policy for rewards without a link to a call.
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
    """Return the assignment of rewards to calls by sequence ids instead of times.

    A reward on the span of a call, or with a link to a call, goes to this call. Any other reward goes to the last call
    before the reward that has no reward yet. Times are not compared, because the clocks of the agent and of a proxy on
    another machine may differ.

    Args:
        calls: the calls, in the order of their sequence ids.
        rewards: the rewards, in any order.
    """
    matching, free = _explicit(calls, sorted(rewards, key=lambda reward: reward.node.span.sequence_id))
    for reward in free:
        number = reward.node.span.sequence_id
        waiting = (index for index in reversed(range(len(calls))) if index not in matching.by_call)
        _assign(next((index for index in waiting if calls[index].sequence_id < number), None), reward, matching)
    return matching


def _explicit(calls: Sequence[Rewarded], rewards: Sequence[Reward]) -> tuple[Matching, list[Reward]]:
    """Assign the rewards that are on the span of a call or link to a call, and return the other rewards."""
    matching, free = Matching(), list[Reward]()
    by_node = {id(node): index for index, call in enumerate(calls) for node in call.nodes}
    for reward in rewards:
        holder = by_node.get(id(reward.node))
        if holder is None and not reward.links:
            free.append(reward)
            continue
        candidates = [holder] if holder is not None else _linked(calls, reward.links)
        unrewarded = [index for index in candidates if index not in matching.by_call]
        _assign(unrewarded[-1] if unrewarded else None, reward, matching, _TAKEN if candidates else _LINKED_MISSING)
    return matching, free


def _linked(calls: Sequence[Rewarded], links: tuple[tuple[str, Any], ...]) -> list[int]:
    """Return the indexes of the calls that the links match.

    If the links match no call, return the indexes of the calls below a span that the links match.
    """
    direct = [index for index, call in enumerate(calls) if any(_has(node, links) for node in call.nodes)]
    return direct or [index for index, call in enumerate(calls) if any(_has(node, links) for node in _above(call.node))]


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
            fields = cast("Mapping[str, Any]", link)
            key = fields.get("key_match")
            if isinstance(key, str) and "value_match" in fields:
                pairs.append((key, fields["value_match"]))
    return tuple(pairs)


def _look_back(calls: Sequence[tuple[int, Rewarded]], rewards: Iterable[Reward], matching: Matching) -> None:
    """Assign each reward to the latest call that ended before the reward and has no reward yet.

    Calls and rewards must be in the order of time.
    """
    ahead = iter([*((index, call) for index, call in calls if index not in matching.by_call), None])
    upcoming = next(ahead)
    waiting: list[tuple[int, Rewarded]] = []
    for reward in rewards:
        while upcoming is not None and upcoming[1].node.place < reward.node.place:
            waiting.append(upcoming)
            upcoming = next(ahead)
        chosen = next(
            (
                position
                for position in reversed(range(len(waiting)))
                if waiting[position][1].node.end_time <= reward.node.start_time
            ),
            None,
        )
        _assign(None if chosen is None else waiting.pop(chosen)[0], reward, matching)


def _among_siblings(calls: Sequence[Rewarded], rewards: Iterable[Reward], matching: Matching) -> None:
    families: dict[int, tuple[list[tuple[int, Rewarded]], list[Reward]]] = {}
    for index, call in enumerate(calls):
        families.setdefault(id(call.node.parent), ([], []))[0].append((index, call))
    for reward in rewards:
        families.setdefault(id(reward.node.parent), ([], []))[1].append(reward)
    for siblings, sibling_rewards in families.values():
        _look_back(siblings, sibling_rewards, matching)


def _final(last: int, rewards: Sequence[Reward], matching: Matching) -> None:
    if rewards:
        _assign(last if last >= 0 and last not in matching.by_call else None, rewards[-1], matching)
    matching.left += [(reward, _NOT_FINAL) for reward in rewards[:-1]]


def _broadcast(count: int, rewards: Sequence[Reward], matching: Matching) -> None:
    if rewards and not count:
        _assign(None, rewards[-1], matching)
    elif rewards:
        matching.by_call = dict.fromkeys(range(count), rewards[-1]) | matching.by_call
    matching.left += [(reward, _NOT_FINAL) for reward in rewards[:-1]]


def _assign(index: int | None, reward: Reward, matching: Matching, otherwise: str = _NO_CALL) -> None:
    if index is None:
        matching.left.append((reward, otherwise))
    else:
        matching.by_call[index] = reward
