"""What the last batches knew, as long as nobody else writes.

A rollout is touched a dozen times within moments, and its rows, just written, need not be read again. Whether another
connection has written in between is the database's to say; if it has, everything is forgotten.
"""

from store.domain.commands import SpanKey, Wants
from store.domain.resources import ResourcesState
from store.domain.rollout import TERMINAL, RolloutState
from store.domain.worker import WorkerSignals, WorkerState
from store.domain.working_set import World

_MOST = 10_000
_MOST_SPANS = 50_000


class Recent:
    """States as of the last commit. Only what exists is known: what is missing here has to be looked up."""

    def __init__(self) -> None:
        self._rollouts: dict[str, RolloutState] = {}
        self._spans: dict[str, set[SpanKey]] = {}
        """For some of the rollouts known, the keys of all their spans."""
        self._span_count = 0
        self._counters: dict[str, int] = {}
        self._workers: dict[str, WorkerState] = {}
        self._signals: dict[str, WorkerSignals] = {}
        self._resources: dict[str, ResourcesState] = {}
        self._latest_resources: str | None = None

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()

    def keep(self, world: World) -> None:
        """Know what a batch left behind, now that it is committed."""
        if len(self._rollouts) + len(self._counters) + len(self._workers) > _MOST or self._span_count > _MOST_SPANS:
            self.clear()
        for rollout_id, state in world.rollouts.items():
            # One that ended may be touched again, but most are not; and one that is not whole must not be taken for it.
            if state.status not in TERMINAL and _is_whole(state):
                self._rollouts[rollout_id] = state
                if state.spans == 0:
                    self._spans[rollout_id] = set()
            else:
                self._rollouts.pop(rollout_id, None)
                self._span_count -= len(self._spans.pop(rollout_id, ()))
        self._keep_spans(world)
        # Numbers are drawn for rollouts that nobody loaded, too.
        self._counters.update(world.counters)
        self._workers.update(world.workers)
        self._signals.update(world.worker_signals)
        self._resources.update(world.resources)
        if world.latest_resources is not None:
            self._latest_resources = world.latest_resources

    def _keep_spans(self, world: World) -> None:
        touched: set[str] = set()
        for key in world.spans:
            known = self._spans.get(key[0])
            if known is not None and key not in known:
                known.add(key)
                self._span_count += 1
                touched.add(key[0])
        for rollout_id in touched:
            known = self._spans[rollout_id]
            if len(known) != self._rollouts[rollout_id].spans:
                # It has others, which nobody asked for.
                self._span_count -= len(self._spans.pop(rollout_id))

    def recall(self, wants: Wants, world: World) -> None:
        """Put what is known into a world, and take it off what has to be loaded."""
        for rollout_id in wants.rollouts & self._rollouts.keys():
            state = world.rollouts[rollout_id] = self._rollouts[rollout_id]
            wants.rollouts.discard(rollout_id)
            if state.labels is not None:
                wants.labelled.discard(rollout_id)
            self._recall_attempts(state, wants)
        self._recall_spans(wants, world)
        for rollout_id in wants.counters & self._counters.keys():
            world.counters[rollout_id] = self._counters[rollout_id]
            wants.counters.discard(rollout_id)
        for worker_id in wants.workers & self._workers.keys():
            world.workers[worker_id] = self._workers[worker_id]
            if worker_id in self._signals:
                world.worker_signals[worker_id] = self._signals[worker_id]
            wants.workers.discard(worker_id)
        for resources_id in wants.resources & self._resources.keys():
            self._recall_resources(resources_id, world)
            wants.resources.discard(resources_id)
        if wants.latest_resources and self._latest_resources is not None:
            self._recall_resources(self._latest_resources, world)
            world.latest_resources = self._latest_resources
            wants.latest_resources = False

    def _recall_spans(self, wants: Wants, world: World) -> None:
        known = [key for key in wants.spans if key[0] in self._spans]
        world.spans.update(key for key in known if key in self._spans[key[0]])
        wants.spans.difference_update(known)

    def _recall_attempts(self, state: RolloutState, wants: Wants) -> None:
        if state.resources_id is not None:
            # What version an attempt would be given is not the rollout's to know.
            wants.resources.add(state.resources_id)
        if state.rollout_id in wants.worked:
            wants.worked.discard(state.rollout_id)
            wants.workers.update(attempt.worker_id for attempt in state.attempts.values() if attempt.worker_id)
        if all(attempt.metadata_position is None for attempt in state.attempts.values()):
            wants.metadata_of.discard(state.rollout_id)

    def _recall_resources(self, resources_id: str, world: World) -> None:
        known = world.resources[resources_id] = self._resources[resources_id]
        world.resource_versions[resources_id] = known.version


def _is_whole(state: RolloutState) -> bool:
    """Say whether all attempts of a rollout are at hand, so that any of them can be named."""
    return sum(attempt.released_position is None for attempt in state.attempts.values()) == state.attempt_count
