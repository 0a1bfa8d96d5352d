"""The WebSocket connection of one client. The application may send a large text message in fragments."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from store.server.streaming.output import DRAIN, FRAGMENT, FRAGMENTS


class SocketConnection(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol with the ASGI extension `FRAGMENTS`."""

    async def run_asgi(self) -> None:
        """Call the application."""
        self.scope["extensions"][FRAGMENTS] = {}  # pyright: ignore[reportTypedDictNotRequiredAccess] - set by uvicorn
        await super().run_asgi()

    async def send(self, message: Any) -> None:
        """Handle an ASGI message from the application."""
        if message["type"] not in {FRAGMENT, DRAIN}:
            await super().send(message)
            return
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        if message["type"] == DRAIN:
            return
        send = self.conn.send_text if message["is_first"] else self.conn.send_continuation
        send(message["bytes"], fin=message["is_last"])
        self.transport.write(b"".join(self.conn.data_to_send()))
