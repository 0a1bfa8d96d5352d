"""Client with the name and the constructor of Agent-lightning's."""

from __future__ import annotations

from collections.abc import Sequence

from store.client.store import HTTPStore


class LightningStoreClient(HTTPStore):
    """An `HTTPStore` with the constructor of Agent-lightning's client. Unlike there, `dequeue_rollout` raises errors.

    Args:
        server_address: URL of the server.
        retry_delays: the pauses before each retry in Agent-lightning. Their sum is used as `retry_seconds`.
        health_retry_delays: accepted for compatibility and ignored; there is no separate health check.
        request_timeout: the timeout of one attempt, in seconds.
        connection_timeout: the timeout of connecting, in seconds.
    """

    def __init__(
        self,
        server_address: str,
        *,
        retry_delays: Sequence[float] = (1.0, 2.0, 5.0),
        health_retry_delays: Sequence[float] = (0.1, 0.2, 0.5),
        request_timeout: float = 30.0,
        connection_timeout: float = 5.0,
    ) -> None:
        del health_retry_delays
        super().__init__(
            server_address,
            retry_seconds=sum(retry_delays),
            timeout_seconds=request_timeout,
            connect_seconds=connection_timeout,
        )

    @property
    def server_address(self) -> str:
        """The URL of the server as it was passed in."""
        return self.url
