"""Agent-lightning's client, by its name and made as it is there."""

from __future__ import annotations

from collections.abc import Sequence

from store.client.store import HTTPStore


class LightningStoreClient(HTTPStore):
    """An `HTTPStore`. Unlike Agent-lightning's it raises what went wrong, also from `dequeue_rollout`.

    Args:
        server_address: URL of the server.
        retry_delays: how long Agent-lightning sleeps before each further try; their sum is how long a call is tried.
        health_retry_delays: accepted and not used; a call that succeeds is the better probe.
        request_timeout: how long one try may go without an answer, in seconds.
        connection_timeout: how long one try may take to connect, in seconds.
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
        """URL of the server, as it was given."""
        return self.url
