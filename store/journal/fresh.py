"""Generated ids that turn out to be taken are drawn again before anything is decided."""

from collections.abc import Iterator, Sequence

from store.domain.commands import Claim, Command, Enqueue, NewRollout, PublishResources, StartAttempt, StartRollout
from store.domain.run_commands import Fork
from store.domain.working_set import World
from store.runtime import ids

_DRAWING: frozenset[type[Command]] = frozenset({Claim, Enqueue, Fork, PublishResources, StartAttempt, StartRollout})


def redraw_taken(commands: Sequence[Command], world: World) -> bool:
    """Give each command whose fresh id exists, in the store or twice in the batch, another one; say if any had to.

    The new ids are not known to be free: load again and ask again.
    """
    # Most commands draw nothing.
    commands = [command for command in commands if type(command) in _DRAWING]
    if not commands:
        return False
    redrawn = False
    taken = world.taken | world.rollouts.keys()
    for item in _new_rollouts(commands):
        if item.rollout_id in taken:
            item.rollout_id = ids.rollout_id()
            redrawn = True
        taken.add(item.rollout_id)
    attempts = {attempt_id for rollout in world.rollouts.values() for attempt_id in rollout.attempts}
    for command in commands:
        match command:
            case Claim():
                clashes = [n for n, attempt_id in enumerate(command.attempt_ids) if attempt_id in attempts]
                for ordinal in clashes:
                    command.attempt_ids[ordinal] = ids.attempt_id()
                redrawn = redrawn or bool(clashes)
            case StartAttempt() | StartRollout() if command.attempt_id in attempts:
                command.attempt_id = ids.attempt_id()
                redrawn = True
            case Fork() if command.fact.attempt_id in attempts:
                command.fact.attempt_id = ids.attempt_id()
                redrawn = True
            case PublishResources(is_new=True) if command.resources_id in world.resources:
                command.resources_id = ids.resources_id()
                redrawn = True
            case _:
                pass
    return redrawn


def _new_rollouts(commands: Sequence[Command]) -> Iterator[NewRollout]:
    for command in commands:
        match command:
            case Enqueue():
                yield from command.items
            case StartRollout():
                yield command.item
            case _:
                pass
