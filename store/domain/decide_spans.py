"""Which facts follow from spans and span numbers."""

from store.domain.commands import NewSpan, NumberSpans, RecordSpans
from store.domain.events import AttemptStatusChanged, RolloutStatusChanged
from store.domain.rollout import AttemptState, RolloutState
from store.domain.working_set import World
from store.errors import NotFound


def number_spans(command: NumberSpans, world: World) -> list[int]:
    """Return the next number of each rollout named, in the order named."""
    return [world.next_number(rollout_id) for rollout_id in command.rollout_ids]


def record_spans(command: RecordSpans, world: World) -> list[tuple[int, int]]:
    """Record spans group by group; return (index in the call, sequence id) of those that were new.

    A group is all spans of one attempt, in the order of first appearance. The counter of its rollout is raised before
    anything is checked, so that a refused or repeated span never lowers what the next number will be. A group of an
    unknown rollout or attempt is refused; the groups before it stand.
    """
    if len(command.items) == 1 and not command.number:
        return _record_one(command.items[0], world, command.actor)
    groups: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(command.items):
        groups.setdefault((item.rollout_id, item.fact.attempt_id), []).append(index)
    recorded: list[tuple[int, int]] = []
    for (rollout_id, attempt_id), indexes in groups.items():
        if not command.number:
            world.raise_counter(rollout_id, max(command.items[index].fact.sequence_id for index in indexes))
        numbers = {index: world.next_number(rollout_id) for index in indexes} if command.number else {}
        state, attempt = _found(rollout_id, attempt_id, world)
        for index in indexes:
            item = command.items[index]
            if command.number:
                # Until it is recorded a fact is the command's own; decided again, it is numbered again.
                item.fact.sequence_id = numbers[index]
            if _record(item, state, attempt, world, command.actor, first=not recorded):
                recorded.append((index, item.fact.sequence_id))
    return recorded


def _record_one(item: NewSpan, world: World, actor: str | None) -> list[tuple[int, int]]:
    number = item.fact.sequence_id
    world.raise_counter(item.rollout_id, number)
    state, attempt = _found(item.rollout_id, item.fact.attempt_id, world)
    return [(0, number)] if _record(item, state, attempt, world, actor, first=True) else []


def _found(rollout_id: str, attempt_id: str, world: World) -> tuple[RolloutState, AttemptState]:
    state = world.rollouts.get(rollout_id)
    if state is None:
        raise NotFound.rollout(rollout_id)
    attempt = state.attempt(attempt_id)
    if attempt is None:
        raise NotFound.attempt(attempt_id, rollout_id)
    return state, attempt


def _record(
    item: NewSpan, state: RolloutState, attempt: AttemptState, world: World, actor: str | None, *, first: bool
) -> bool:
    key = (item.rollout_id, attempt.attempt_id, item.fact.span_id)
    if key in world.spans:
        return False
    if not first:
        world.tick()
    world.spans.add(key)
    event = world.record_rollout(item.rollout_id, item.fact, actor=actor, body=item.body)
    if attempt.status in {"preparing", "unresponsive"}:
        fact = AttemptStatusChanged(attempt_id=attempt.attempt_id, from_=attempt.status, to="running", reason="span")
        world.record_rollout(item.rollout_id, fact, actor=actor, cause=event.position)
    # A late span of an attempt that is over must not kill the retry that waits in the queue.
    if attempt.status == "running" and state.status in {"preparing", "requeuing"} and state.latest is attempt:
        moved = RolloutStatusChanged(from_=state.status, to="running", reason="span")
        world.record_rollout(item.rollout_id, moved, actor=actor, cause=event.position)
    return True
