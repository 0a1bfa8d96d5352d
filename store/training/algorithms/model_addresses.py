"""Addresses of models in stored resources, which change when a training continues with a new proxy (decision 86)."""

from __future__ import annotations

import asyncio
import logging
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from store.errors import Unsupported
from store.models import LLM, ProxyLLM
from store.wire.probe import get

if TYPE_CHECKING:
    from collections.abc import Mapping

    from store.interface.store import Store
    from store.llm_proxy import LLMProxy
    from store.models import NamedResources, ResourcesUpdate, ResourceUnion

logger = logging.getLogger("store.training.trainer")

_PROBE_SECONDS: Final = 1.0
_READ_AT_ONCE: Final = 100
_ADDRESS: Final = frozenset({"endpoint", "api_key"})


def meaning(resources: NamedResources) -> dict[str, Any]:
    """Return the content of resources without the addresses and keys of models.

    Two versions with equal content give the same results, and differ at most in the addresses of models.
    """
    return {
        name: resource.model_dump(exclude=set(_ADDRESS) if isinstance(resource, LLM) else None)
        for name, resource in resources.items()
    }


def with_addresses(stored: NamedResources, current: Mapping[str, ResourceUnion]) -> NamedResources | None:
    """Return stored resources with the addresses and keys of the current models of the same names.

    A model that is not behind a proxy keeps its address if the current model has another name. All other content stays
    as stored. Return None if nothing changes.
    """
    moved: NamedResources = {}
    for name, resource in stored.items():
        other = current.get(name)
        if not isinstance(resource, LLM) or not isinstance(other, LLM) or type(resource) is not type(other):
            continue
        if not isinstance(resource, ProxyLLM) and resource.model != other.model:
            continue
        address = {"endpoint": other.endpoint, "api_key": other.api_key}
        if any(getattr(resource, field) != value for field, value in address.items()):
            moved[name] = resource.model_copy(update=address)
    return {**stored, **moved} if moved else None


async def move_to_proxy(store: Store, proxy: LLMProxy) -> list[str]:
    """Publish the address of a proxy for unfinished rollouts whose former proxy no longer answers.

    Resources get a new version on two conditions. They contain a model behind a proxy that does not answer. And they
    are the latest resources, or a rollout that uses them is unfinished or has failed. A model that the backends of the
    new proxy do not declare keeps its address. The latest resources stay the latest.

    Returns:
        The ids of the resources that have a new version.
    """
    latest = await store.get_latest_resources()
    if latest is None:
        return []
    store_id = getattr(store, "store_id", None)
    answers: dict[str, bool] = {}
    moved: list[str] = []
    for update in await _with_models(store, proxy):
        for endpoint in {llm.endpoint for llm in _models(update, proxy)} - answers.keys():
            answers[endpoint] = await asyncio.to_thread(_answers, endpoint, proxy.endpoint, store_id)
        lost = {
            name: llm.model_copy(update={"endpoint": proxy.endpoint})
            for name, llm in update.resources.items()
            if isinstance(llm, ProxyLLM) and _may_serve(proxy, llm) and not answers[llm.endpoint]
        }
        if lost and (update.resources_id == latest.resources_id or await _is_used(store, update.resources_id)):
            await store.update_resources(update.resources_id, {**update.resources, **lost})
            moved.append(update.resources_id)
            logger.info("resources %s have the address of the new proxy, %s", update.resources_id, proxy.endpoint)
    if moved and moved[-1] != latest.resources_id:
        await store.update_resources(latest.resources_id, latest.resources)
    return moved


async def _with_models(store: Store, proxy: LLMProxy) -> list[ResourcesUpdate]:
    """Return all resources with a model that a former proxy may have served, in the order of their updates."""
    updates: list[ResourcesUpdate] = []
    offset = 0
    while True:
        page = await store.query_resources(sort_by="update_time", limit=_READ_AT_ONCE, offset=offset)
        updates += [update for update in page if _models(update, proxy)]
        offset += len(page)
        if not page or offset >= page.total:
            return updates


def _models(update: ResourcesUpdate, proxy: LLMProxy) -> list[ProxyLLM]:
    return [llm for llm in update.resources.values() if isinstance(llm, ProxyLLM) and _may_serve(proxy, llm)]


def _may_serve(proxy: LLMProxy, llm: ProxyLLM) -> bool:
    if llm.endpoint == proxy.endpoint:
        return False
    backends = proxy.backends
    return not backends or any(not backend.models or llm.model in backend.models for backend in backends)


async def _is_used(store: Store, resources_id: str) -> bool:
    """Return whether rollouts with these resources have to be executed, now or again."""
    try:
        page = await store.query_rollouts(
            resources_id_in=[resources_id],
            status_in=["queuing", "requeuing", "preparing", "running", "failed"],
            limit=0,
        )
    except Unsupported:
        return True
    return page.total > 0


def _answers(endpoint: str, other: str, store_id: str | None) -> bool:
    """Return whether a proxy for this store answers at an endpoint.

    On another host than that of the new proxy, the answer of any HTTP server counts. On the same host, only the answer
    of a proxy counts, because another program may have taken the port of the former proxy.
    """
    try:
        url = urlsplit(endpoint)
        response = get(f"{url.scheme}://{url.netloc}/health", seconds=_PROBE_SECONDS)
        is_same_host = url.hostname == urlsplit(other).hostname
    except (OSError, HTTPException, ValueError):
        return False
    if "backends" in response.body:
        return response.body.get("store", store_id) in {store_id, None}
    return not is_same_host
