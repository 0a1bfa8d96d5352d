"""HTTP client with the class name and the constructor of the client of Agent-lightning."""

from __future__ import annotations

from collections.abc import Sequence

from store.client.store import HTTPStore


class LightningStoreClient(HTTPStore):
    """An `HTTPStore` with the constructor of Agent-lightning's client.

    If a request of `dequeue_rollout` fails, this class raises an error; the client of Agent-lightning returns None.

    Args:
        server_address: URL of the server.
        retry_delays: in Agent-lightning, the delay before each retry. Here, only the sum is used, as `retry_seconds`.
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
