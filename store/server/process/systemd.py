"""Two systemd protocols for services: socket activation and readiness notification.

Sources: the manual pages sd_listen_fds(3) and sd_notify(3).
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

from store.errors import Invalid

_FIRST_DESCRIPTOR: Final = 3


def inherited_listener() -> socket.socket | None:
    """Return the listening TCP socket that systemd passes to this process; None if no socket is passed.

    Raises:
        Invalid: several sockets are passed, or the socket is not a listening TCP socket.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    # The variables are removed, so that child processes do not treat the socket as their own.
    count = os.environ.pop("LISTEN_FDS", "")
    for name in ("LISTEN_PID", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    if count != "1":
        raise Invalid(
            "LISTEN_FDS", f"systemd passes {count or 'no'} sockets; the socket unit must have one ListenStream="
        )
    os.set_inheritable(_FIRST_DESCRIPTOR, False)
    inherited = socket.socket(fileno=_FIRST_DESCRIPTOR)
    is_tcp = inherited.family in {socket.AF_INET, socket.AF_INET6} and inherited.type == socket.SOCK_STREAM
    if not is_tcp or not inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise Invalid("LISTEN_FDS", "the passed socket is not a listening TCP socket; use ListenStream=ADDRESS:PORT")
    # The event loop turns Nagle's algorithm off only if the socket was created with its protocol; see `listener.bind`.
    return socket.socket(inherited.family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=inherited.detach())


def notify_ready() -> None:
    """Notify systemd that the service is ready. Do nothing if systemd is absent or does not listen."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.connect(address)
        sender.sendall(b"READY=1")
