"""Phase graphs in the resources of runs."""

from __future__ import annotations

from typing import Final

from store.interface.store import Store
from store.models import PhaseGraph, ResourcesUpdate, Rollout
from store.runtime import context

_PREFIX: Final = "phases-"


async def graph_of(store: Store, rollout: Rollout) -> PhaseGraph | None:
    """Return the phase graph among the resources of a run; None if there is none."""
    if rollout.resources_id is None:
        return None
    resources = await store.get_resources_by_id(rollout.resources_id)
    return None if resources is None else phase_graph_in(resources)


def phase_graph_in(resources: ResourcesUpdate) -> PhaseGraph | None:
    """Return the phase graph among resources; None if there is none."""
    return next((resource for resource in resources.resources.values() if isinstance(resource, PhaseGraph)), None)


def pipeline_of_run(rollout: Rollout, resources: ResourcesUpdate | None) -> str | None:
    """Return the name of the phase graph of a run; None if the rollout is not a run.

    A run is a rollout without a mode whose resources contain a phase graph.
    """
    graph = None if rollout.mode is not None or resources is None else phase_graph_in(resources)
    return None if graph is None else graph.name


async def publish_default(store: Store, graph: PhaseGraph) -> str:
    """Publish resources that contain only this graph, unless these resources exist; return their id.

    Such resources are for runs for which no program has published a graph.
    """
    resources_id = _PREFIX + graph.digest[:12]
    if await store.get_resources_by_id(resources_id) is None:
        # The idempotency key of the current request belongs to the creation of the run, which is another call.
        key = context.idempotency_key.set(None)
        try:
            await store.update_resources(resources_id, {"phases": graph})
        finally:
            context.idempotency_key.reset(key)
    return resources_id


def is_default(resources_id: str | None) -> bool:
    """Return whether resources were published by `publish_default`."""
    return resources_id is not None and resources_id.startswith(_PREFIX)
