"""Adapters with exactly the results of Agent-lightning 0.3. They serve to compare results before and after a migration.

These adapters differ from the other adapters of this package:

- The result depends on the order of the input.
- A repair moves only the spans of the highest level of the tree that has more than one span.
- Calls are in the order of the tree: each span before its descendants.
- The policy `first_sibling` processes the children of a span in the order in which they were added, not by time.
- Invalid spans are an error.

Where 0.3 raises an error, these adapters raise `Invalid` with a remedy. If several parents are missing, the result of
0.3 depends on the order of a set of strings, so it is not deterministic. These adapters use the order of the input.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Final, ParamSpec, cast

from pydantic import ConfigDict, TypeAdapter

from store.adapters.intake import as_span
from store.adapters.records import Triplet
from store.adapters.rewards import RewardMatchPolicy
from store.adapters.selection import EVERY_AGENT, Rules
from store.adapters.tree import VIRTUAL_ROOT, agent_name
from store.errors import Invalid
from store.model_calls.nested import unflatten
from store.model_calls.recorded import PROMPT_TOKENS, RESPONSE_IDS, RESPONSE_TOKENS, image_urls
from store.models import Span
from store.models.enums import Frozen
from store.semconv import (
    ANNOTATION_SPAN,
    OPERATION_INPUT,
    OPERATION_NAME,
    OPERATION_OUTPUT,
    OPERATION_SPAN,
    REWARD,
    REWARD_SPAN,
    VIRTUAL_SPAN,
)

__all__ = ["from_proxy", "from_tracer"]

_OURS: Final = "agl.call."
_PROMPT_TOKENS: Final = [name for name in PROMPT_TOKENS if not name.startswith(_OURS)]
_RESPONSE_TOKENS: Final = [name for name in RESPONSE_TOKENS if not name.startswith(_OURS)]
_RESPONSE_IDS: Final = [name for name in RESPONSE_IDS if not name.startswith(_OURS)]
_AGENTOPS_OUTPUTS: Final = ("agentops.task.output", "agentops.entity.output")
_VLLM: Final = "llm.hosted_vllm."

P = ParamSpec("P")


class _Dimension(Frozen):
    name: str
    value: float


_DIMENSIONS: Final = TypeAdapter(list[_Dimension], config=ConfigDict(defer_build=True))


class _Node:
    """A node of the tree: a span, or a placeholder for a missing span. Several nodes may contain the same span."""

    def __init__(self, span: Span, children: list[_Node], span_id: str | None = None) -> None:
        self.id = span.span_id if span_id is None else span_id
        self.span = span
        # A missing time stays None, so that a comparison fails as in 0.3.
        self.start: Any = span.start_time
        self.end: Any = span.end_time
        self.children = children

    def walk(self) -> Iterator[_Node]:
        waiting: list[_Node] = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))


def _or_invalid(adapt: Callable[P, list[Triplet]]) -> Callable[P, list[Triplet]]:
    """Convert the exceptions that unexpected spans cause to `Invalid` with a remedy."""

    @wraps(adapt)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> list[Triplet]:
        try:
            return adapt(*args, **kwargs)
        except Invalid:
            raise
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise _no_result(f"{type(error).__name__}: {error}") from error

    return guarded


def _no_result(reason: str) -> Invalid:
    return Invalid(
        "source", f"Agent-lightning 0.3 raises an error for these spans ({reason}); leave out strict_upstream"
    )


@_or_invalid
def from_tracer(source: Iterable[Any], rules: Rules, policy: RewardMatchPolicy, *, repairs: bool) -> list[Triplet]:
    """Return what `TracerTraceToTriplet` of 0.3 returns.

    Raises:
        Invalid: 0.3 would raise an error: there are no spans, all spans have a parent, times are missing, or a reward
            is malformed.
    """
    tree = _tree(_spans(source))
    if repairs:
        _repair(tree)
    calls = [(node, _triplet(node.span, label)) for node, label in _calls(tree, rules)]
    if rules.tokens == "both":
        calls = [call for call in calls if call[1].prompt["token_ids"] and call[1].response["token_ids"]]
    rewards = _matched(tree, policy, {node.id for node, _ in calls})
    return [triplet.model_copy(update={"reward": rewards.get(node.id)}) for node, triplet in calls]


@_or_invalid
def from_proxy(source: Iterable[Any]) -> list[Triplet]:
    """Return what `LlmProxyTraceToTriplet` of 0.3 returns.

    Raises:
        Invalid: 0.3 would raise an error: one of two spans with the same sequence id has no start time, or a reward is
            malformed.
    """
    key: Callable[[Span], Any] = lambda span: (span.sequence_id, span.start_time)  # noqa: E731 - its type matters
    spans = sorted(_spans(source), key=key)
    calls: list[tuple[Span, Triplet]] = []
    response_ids: set[str] = set()
    for span in spans:
        prompt, response = _proxy_tokens(span)
        if not (prompt and response):
            continue
        recorded_id = span.attributes.get("gen_ai.response.id") or span.attributes.get(f"{_VLLM}id")
        response_id = recorded_id if isinstance(recorded_id, str) and recorded_id else None
        if response_id is None or response_id not in response_ids:
            response_ids |= {response_id} if response_id else set()
            metadata = {"response_id": response_id}
            triplet = Triplet(prompt={"token_ids": prompt}, response={"token_ids": response}, metadata=metadata)
            calls.append((span, triplet))
    rewards: dict[str, float] = {}
    for span in spans:
        value = _reward(span)
        if value is not None:
            earlier = (call.span_id for call, _ in reversed(calls) if call.sequence_id < span.sequence_id)
            chosen = next((span_id for span_id in earlier if span_id not in rewards), None)
            rewards |= {} if chosen is None else {chosen: value}
    return [triplet.model_copy(update={"reward": rewards.get(span.span_id)}) for span, triplet in calls]


def _spans(source: Iterable[Any]) -> list[Span]:
    spans = [as_span(item) for item in source]
    if any(span is None for span in spans):
        raise _no_result("an item is not a span")
    return cast("list[Span]", spans)


def _tree(spans: Sequence[Span]) -> _Node:
    by_id = {span.span_id: span for span in spans}
    below: dict[str, list[str]] = {}
    roots: list[str] = []
    for span in spans:
        if span.parent_id is None:
            roots.append(span.span_id)
        else:
            below.setdefault(span.parent_id, []).append(span.span_id)
    roots += [parent_id for parent_id in below if parent_id not in by_id]

    def built(span_id: str) -> _Node:
        children = [built(child_id) for child_id in below.get(span_id, ())]
        return _Node(by_id[span_id] if span_id in by_id else _stand_in(span_id, children), children)

    if not roots:
        raise _no_result("every span has a parent" if spans else "there are no spans")
    nodes = [built(root) for root in roots]
    if len(nodes) == 1:
        return nodes[0]
    root = Span.from_attributes(
        attributes={}, name=VIRTUAL_ROOT, start_time=nodes[0].span.start_time, end_time=nodes[-1].span.end_time
    )
    return _Node(root, nodes, VIRTUAL_ROOT)


def _stand_in(span_id: str, children: Sequence[_Node]) -> Span:
    return Span.from_attributes(
        attributes={},
        span_id=span_id,
        name=VIRTUAL_SPAN,
        start_time=min(child.start for child in children if child.start is not None),
        end_time=max(child.end for child in children if child.end is not None),
    )


def _repair(tree: _Node) -> None:
    while len(tree.children) == 1:
        (tree,) = tree.children
    for node in list(tree.children):
        if len(tree.children) == 1:
            break
        tightest, least = None, math.inf
        for other in tree.walk():
            if other is tree or other.id == node.id:
                continue
            if other.start <= node.start and other.end >= node.end:
                # The terms are added in the order of 0.3. Another order may round differently and select another span.
                slack = other.end - node.end + node.start - other.start
                if 0 < slack < least:
                    tightest, least = other, slack
        if tightest is not None:
            tree.children.remove(node)
            tightest.children.append(node)


def _calls(tree: _Node, rules: Rules) -> list[tuple[_Node, str]]:
    calls: list[tuple[_Node, str]] = []
    response_ids: set[str] = set()
    start = EVERY_AGENT if rules.is_agent is None else None
    waiting: list[tuple[_Node, str | None, bool, bool]] = [(tree, start, False, False)]
    while waiting:
        node, label, in_reward, in_call = waiting.pop()
        if label is not None and not in_reward and rules.is_call(node.span.name):
            response_id = _text(node.span.attributes, _RESPONSE_IDS)
            if not in_call if response_id is None else response_id not in response_ids:
                calls.append((node, label))
                response_ids |= set() if response_id is None else {response_id}
                in_call = True
        agent = agent_name(node.span.name, node.span.attributes)
        if agent is not None:
            label = agent if rules.is_agent is None or rules.is_agent(agent) else None
        in_reward = in_reward or (rules.without_judges and _is_reward(node.span))
        waiting.extend((child, label, in_reward, in_call) for child in reversed(node.children))
    return calls


def _triplet(span: Span, label: str) -> Triplet:
    attributes = span.attributes
    request = _nested(attributes, "gen_ai.request", OPERATION_INPUT)
    response = _nested(attributes, "gen_ai.response", OPERATION_OUTPUT)
    for parts, extra in ((request, ["messages"]), (response, ["choices", "prompt_token_ids", "response_token_ids"])):
        if isinstance(parts, dict):
            for name in extra:
                cast("dict[str, Any]", parts).pop(name, None)
    prompt = _nested(attributes, "gen_ai.prompt", f"{OPERATION_INPUT}.messages")
    response_fields: dict[str, Any] = {
        "token_ids": _ids(attributes, _RESPONSE_TOKENS),
        "raw_content": _nested(attributes, "gen_ai.completion", f"{OPERATION_OUTPUT}.choices"),
    }
    logprobs = attributes.get("logprobs.content")
    if isinstance(logprobs, str):
        response_fields["logprobs"] = json.loads(logprobs)
    return Triplet(
        prompt={"token_ids": _ids(attributes, _PROMPT_TOKENS), "raw_content": prompt, "image_urls": image_urls(prompt)},
        response=response_fields,
        metadata={
            "request": request,
            "response": response,
            "response_id": _text(attributes, _RESPONSE_IDS),
            "agent_name": label,
        },
    )


def _text(attributes: Mapping[str, Any], names: Iterable[str]) -> str | None:
    return next((value for name in names if isinstance(value := attributes.get(name), str)), None)


def _ids(attributes: Mapping[str, Any], names: Iterable[str]) -> list[int]:
    lists = (_as_ids(attributes.get(name), (list, tuple)) for name in names)
    return next((ids for ids in lists if ids is not None), list[int]())


def _as_ids(value: Any, kinds: type | tuple[type, ...] = list) -> list[int] | None:
    if not isinstance(value, kinds):
        return None
    ids = list(cast("Iterable[Any]", value))
    return ids if all(isinstance(number, int) for number in ids) else None


def _nested(attributes: Mapping[str, Any], *prefixes: str) -> Any:
    for prefix in prefixes:
        start = f"{prefix}."
        if prefix in attributes:
            raise _no_result(f"{prefix} is an attribute itself")
        if flat := {name[len(start) :]: value for name, value in attributes.items() if name.startswith(start)}:
            return unflatten(flat)
    return None


def _proxy_tokens(span: Span) -> tuple[list[int], list[int]]:
    attributes: Mapping[str, Any] = span.attributes
    if span.name == "litellm_request":
        prompt, response = (_as_ids(_literal(attributes.get(f"{name}_token_ids"))) for name in ("prompt", "response"))
    elif span.name == "raw_gen_ai_request":
        prompt = _as_ids(_literal(attributes.get(f"{_VLLM}prompt_token_ids")))
        response = _as_ids(_first(_literal(attributes.get(f"{_VLLM}response_token_ids"))))
        if not response:
            choice = _first(_literal(attributes.get(f"{_VLLM}choices")))
            response = _as_ids(cast("dict[str, Any]", choice).get("token_ids")) if isinstance(choice, dict) else None
    else:
        prompt = response = None
    return prompt or [], response or []


def _first(value: Any) -> Any:
    return cast("list[Any]", value)[0] if isinstance(value, list) and value else None


def _literal(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return value


def _is_reward(span: Span) -> bool:
    is_reward_operation = span.name == OPERATION_SPAN and span.attributes.get(OPERATION_NAME) == REWARD_SPAN
    return _reward(span) is not None or is_reward_operation


def _reward(span: Span) -> Any:
    attributes: Mapping[str, Any] = span.attributes
    if any(name.startswith(REWARD) for name in attributes):
        prefix = f"{REWARD}."
        if REWARD in attributes:
            raise _no_result(f"{REWARD} is an attribute itself")
        flat = {name[len(prefix) :]: value for name, value in attributes.items() if name.startswith(prefix)}
        dimensions = _DIMENSIONS.validate_python(unflatten(flat))
        if dimensions:
            return dimensions[0].value
    for key in _AGENTOPS_OUTPUTS:
        output = attributes.get(key)
        if isinstance(output, str):
            try:
                output = json.loads(output)
            except json.JSONDecodeError:
                continue
            # If the JSON is not an object, this line raises an error, as 0.3 does.
            if output and output.get("type") == "reward":
                return output.get("value")
        elif isinstance(output, dict) and cast("dict[str, Any]", output).get("type") == "reward":
            return cast("dict[str, Any]", output).get("value")
    # 0.3 returns a value of any type here.
    return attributes.get("reward") if span.name == ANNOTATION_SPAN else None


def _matched(tree: _Node, policy: RewardMatchPolicy, calls: set[str]) -> dict[str, float]:
    rewards: dict[str, float] = {}
    if policy is RewardMatchPolicy.FIRST_OCCURRENCE:
        _look_back(sorted(tree.walk(), key=lambda node: node.start), calls, rewards)
    else:
        for node in tree.walk():
            _look_back(node.children, calls, rewards)
    return rewards


def _look_back(nodes: Iterable[_Node], calls: set[str], rewards: dict[str, float]) -> None:
    """Assign each reward to the last call before the reward in the list that had ended and has no reward yet."""
    before: list[_Node] = []
    for node in nodes:
        if node.id in calls:
            before.append(node)
        value = _reward(node.span)
        if value is not None:
            ended = (call.id for call in reversed(before) if not call.end > node.start)
            chosen = next((call_id for call_id in ended if call_id not in rewards), None)
            rewards |= {} if chosen is None else {chosen: value}
