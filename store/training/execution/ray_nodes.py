"""Nodes of a Ray cluster: whether they reach a store, and the runners of nodes that are about to be shut down."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Never
from urllib.parse import urlsplit

from store.errors import Invalid
from store.runtime import postgres_url
from store.runtime.limited_log import LimitedLog
from store.runtime.urls import scheme_of, without_passwords
from store.training.execution.ray_cluster import Cluster
from store.training.execution.ray_parts import RayPart
from store.training.execution.supervisor import Supervisor
from store.wire.listener import is_loopback

logger = logging.getLogger(__name__)

SHARED_SCHEMES: Final = frozenset({"postgresql", "http", "https"})
"""The schemes of the stores that other machines can open."""
_LOOK_SECONDS: Final = 1.0
_REPORTING_SECONDS: Final = 10.0
"""The time before the end of a node that is left for cancelled agents and the reports of their attempts."""


async def follow_nodes(supervisor: Supervisor, cluster: Cluster) -> Never:
    """Move runners away from nodes that are about to be shut down.

    These runners claim nothing more. Rollouts whose attempts do not end in time return to the queue.
    """
    limited = LimitedLog(logger)
    while True:
        nodes: dict[str, float | None] = {}
        try:
            nodes = await asyncio.to_thread(cluster.draining_nodes)
        except cluster.ray.exceptions.RayError as error:
            limited.warning("the nodes that are about to be shut down cannot be read", error)
        for number, part in list(supervisor.runners.items()):
            if isinstance(part, RayPart) and part.node_id in nodes:
                remaining = nodes[part.node_id]
                seconds = None if remaining is None else max(0.0, remaining - _REPORTING_SECONDS)
                supervisor.move(number, seconds, f"node {part.node_id[:8]} is about to be shut down")
        await asyncio.sleep(_LOOK_SECONDS)


def check_shared(url: str, cluster: Cluster | None = None) -> None:
    """Check that nodes can open the store of long-lived runners.

    Args:
        url: the URL of the store.
        cluster: the cluster of the nodes; None to check only the kind of the store.

    Raises:
        Invalid: the nodes cannot open the store.
    """
    scheme = scheme_of(url)
    if scheme not in SHARED_SCHEMES:
        raise Invalid(
            "--db",
            f"the nodes of a cluster cannot open {without_passwords(url)}; use a postgresql:// URL, or serve the store "
            "with `rollbook serve --host ADDRESS` and use the http:// URL",
        )
    if cluster is None or not cluster.has_other_machines:
        return
    host = postgres_url.split(url).host[0] if scheme == "postgresql" else urlsplit(url).hostname or ""
    if host.startswith("/") or is_loopback(host):
        raise Invalid(
            "--db",
            f"{without_passwords(url)} leads each machine to itself, and the cluster has several; use an address that "
            f"all of them reach, such as {cluster.host} for this machine",
        )
