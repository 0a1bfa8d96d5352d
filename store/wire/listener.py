"""The port of a server: functions that bind the port, describe the program on the port, and return the server's URL."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import weakref
from typing import cast

from store.errors import Invalid
from store.wire.probe import who_answers


class PortTaken(RuntimeError, OSError):
    """Another program listens on the port; the text describes that program."""

    def __init__(self, host: str, port: int, answers: str) -> None:
        super().__init__(
            f"the server did not start up within its time: address already in use: {host}:{port}, where {answers} "
            "answers; stop that program, or choose another port"
        )


def bind(host: str, port: int) -> socket.socket:
    """Bind a port and return its listening socket.

    Args:
        host: a name or an address of this machine.
        port: 0 for any free port.

    Raises:
        PortTaken: another program listens on the port.
        Invalid: the host is not an address of this machine, or the user may not use the port.
    """
    family, address = _resolved(host, port)
    # The event loop turns Nagle's algorithm off only if the socket was created with its protocol. With the algorithm,
    # the body of a response waits up to 40 ms for the client to acknowledge the headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Without this option a port stays in use for a minute after its server has ended.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Several sockets may be bound to a port until one of them listens, so a used port is detected here.
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(host, port, who_answers(address[0], port)) from None
        raise Invalid("host", f"{host}:{port} cannot be listened on: {error.strerror}") from None
    _close_in_forks(listener)
    return listener


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError, OverflowError) as error:
        raise Invalid("host", f"{host!r} is not an address of this machine: {error}") from None
    # localhost may have an IPv4 and an IPv6 address. Every client tries the IPv4 address, so it is preferred.
    family, _, _, _, address = min(addresses, key=lambda address: address[0] != socket.AF_INET)
    return family, cast("tuple[str, int]", address)


def _close_in_forks(listener: socket.socket) -> None:
    """Close the socket in forked children. Otherwise a child would keep the port open after the parent closed it."""
    reference = weakref.ref(listener)

    def close() -> None:
        inherited = reference()
        if inherited is not None and inherited.fileno() >= 0:
            os.close(inherited.detach())

    os.register_at_fork(after_in_child=close)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    _, address = _resolved(host, 0)
    return ipaddress.ip_address(address[0].partition("%")[0]).is_loopback


def url_of(host: str, port: int) -> str:
    """Return the URL of a server that listens on a host.

    If the server listens on all addresses, the URL contains one of these addresses.
    """
    address = ipaddress.ip_address(_resolved(host, 0)[1][0].partition("%")[0])
    if address.is_unspecified:
        return f"http://{_outbound_address()}:{port}"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _outbound_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing. It only chooses the source address.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return probe.getsockname()[0]
