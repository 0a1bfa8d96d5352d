"""Delivery of messages: the check of addresses, one attempt, and the thread of a server that checks and delivers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from socket import (
    AF_INET6,
    AF_UNSPEC,
    AI_NUMERICHOST,
    NI_NUMERICHOST,
    SOCK_STREAM,
    AddressFamily,
    getaddrinfo,
)
from threading import Thread
from typing import Any, Final

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from store.errors import Incompatible, Invalid, NotFound, StoreError
from store.runtime.clock import MICROSECONDS
from store.runtime.loop_thread import LoopThread
from store.webhooks.records import Delivery, Webhook, Webhooks
from store.webhooks.signing import signed_headers

logger = logging.getLogger("store.webhooks")

RETRY_SECONDS: Final = (5.0, 60.0, 300.0, 1800.0, 7200.0)
"""The pauses between attempts. After the last attempt, the message has failed."""
TIMEOUT_SECONDS: Final = 10.0
"""The maximum time of one attempt, from the resolution of the name to the response."""
LEASE_SECONDS: Final = 60.0
"""The time after which a message is sent again if its sender was killed."""
CHECK_SECONDS: Final = 30.0
"""The interval between two checks of the conditions."""
_DUTY: Final = 50
"""Checks take at most this fraction of the time of the thread: one fiftieth."""
_OPENED_AT_ONCE: Final = 4
_MOST_URL: Final = 2000
_READ_BYTES: Final = 4096
_READ_SECONDS: Final = 1.0
_NAT64: Final = IPv6Network("64:ff9b::/96")
# The metadata service of Azure has a public address.
_METADATA: Final = ip_address("168.63.129.16")


class PrivateAddress(OSError):
    """An address of a private network, to which no message is sent."""


def check_address(text: str) -> None:
    """Refuse an address that is not public, also if it is embedded in an IPv6 address.

    Raises:
        PrivateAddress: the address is private, loopback, link-local, multicast, reserved or of a metadata service.
    """
    address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        inner = IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
        address = address.ipv4_mapped or address.sixtofour or inner or address
    if not address.is_global or address.is_multicast or address == _METADATA:
        raise PrivateAddress(
            f"{text} is not a public address; permit it with `webhooks add --allow-private`"
            " and `serve --allow-private-webhooks`"
        )


class CheckedResolver(AbstractResolver):
    """Resolves names to addresses and refuses a name if one of its addresses is private.

    The connection uses the checked addresses, so a name whose address changes is no way around the check.
    """

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private

    async def resolve(self, host: str, port: int = 0, family: AddressFamily = AF_UNSPEC) -> list[ResolveResult]:
        """Return the addresses of a name.

        Raises:
            PrivateAddress: an address is not public.
            OSError: the name cannot be resolved.
        """
        answer: Future[list[Any]] = Future()
        answer.set_running_or_notify_cancel()

        def look_up() -> None:
            try:
                answer.set_result(getaddrinfo(host, port, family, SOCK_STREAM))
            except (OSError, UnicodeError) as error:
                answer.set_exception(error)

        # The executor of an event loop is awaited at the end of the process, which a name server must not delay.
        Thread(target=look_up, name="rollbook webhooks: name lookup", daemon=True).start()
        infos = await asyncio.wrap_future(answer)
        results: list[ResolveResult] = []
        for kind, _, proto, _, place in infos:
            address = str(place[0])
            if not self._allow_private:
                check_address(address)
            scope = f"%{place[3]}" if kind == AF_INET6 and len(place) > 3 and place[3] else ""
            results.append(
                ResolveResult(
                    hostname=host,
                    host=address.partition("%")[0] + scope,
                    port=port,
                    family=kind,
                    proto=proto,
                    flags=AI_NUMERICHOST | NI_NUMERICHOST,
                )
            )
        return results

    async def close(self) -> None:
        """Do nothing; there is no resource."""


async def check_url(text: str, *, allow_private: bool) -> str:
    """Return the URL of a receiver in its normal form.

    Raises:
        Invalid: the text is not an HTTP URL, or its address is private or cannot be resolved.
    """
    try:
        url = URL(text)
        host, port = url.host, url.port
    except ValueError:
        host, port, url = None, None, URL()
    if host is None or port is None or url.scheme not in {"http", "https"} or len(text) > _MOST_URL or url.user:
        raise Invalid("url", f"{text[:200]!r} is not the URL of a receiver; write https://host/path, without a user")
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await CheckedResolver(allow_private=allow_private).resolve(host, port)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise Invalid("url", f"{host} is refused: {error or 'its name was not resolved in time'}") from None
    return str(url)


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of one attempt."""

    status: int | None
    """The status of the response; None if there was none."""
    error: str | None
    """The reason of the failure; None if the message was delivered."""


async def send(
    webhook: Webhook, message: Delivery, *, allow_private: bool, timeout_seconds: float = TIMEOUT_SECONDS
) -> SendResult:
    """Send a message once. A status from 200 to 299 is success; redirects are not followed."""
    body = message.body.encode()
    url = URL(webhook.url)
    headers = {
        "content-type": "application/json",
        "user-agent": "rollbook-webhooks",
        **signed_headers(webhook.secret, message.delivery_id, (message.attempted_at or 0) // MICROSECONDS, body),
    }
    status: int | None = None
    host, resolver = url.host or "", CheckedResolver(allow_private=allow_private)
    try:
        async with asyncio.timeout(timeout_seconds):
            if ":" in host or host.replace(".", "").isdigit():
                # aiohttp passes a host that looks like an address, also `127.1`, to the system without the resolver.
                await resolver.resolve(host, url.port or 0)
            connector = TCPConnector(resolver=resolver, use_dns_cache=False, force_close=True)
            async with (
                ClientSession(
                    connector=connector, trust_env=False, auto_decompress=False, timeout=ClientTimeout(total=None)
                ) as session,
                session.post(url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                status = response.status
                # The status is the result. A short body is read, so that the receiver sees no reset connection.
                with suppress(TimeoutError, ClientError):
                    async with asyncio.timeout(_READ_SECONDS):
                        await response.content.read(_READ_BYTES)
    except TimeoutError:
        return SendResult(status, f"no response after {timeout_seconds:g} s")
    except (ClientError, OSError, ValueError) as error:
        # aiohttp hides the text of an error of the resolver in the cause.
        cause = error.__cause__ if isinstance(error.__cause__, PrivateAddress) else error
        return SendResult(status, f"{type(cause).__name__}: {cause}"[:500])
    return SendResult(status, None if 200 <= status < 300 else f"the receiver answered with the status {status}")


async def deliver(
    webhooks: Webhooks,
    webhook: Webhook,
    message: Delivery,
    *,
    allow_private: bool,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Delivery | None:
    """Send a claimed message once and store the result; return None if another process has taken over the message."""
    result = await send(webhook, message, allow_private=allow_private, timeout_seconds=timeout_seconds)
    is_last = message.attempts > len(RETRY_SECONDS) or message.type == "webhook.test"
    return await webhooks.record(
        message,
        response_status=result.status,
        error=result.error,
        retry_seconds=None if is_last else RETRY_SECONDS[message.attempts - 1],
    )


class WebhookThread:
    """Checks the conditions of partitions and delivers their messages, in a thread.

    Writes to SQLite block a thread, and so would block requests in the event loop of the server.

    Args:
        allow_private: whether messages may be sent to private addresses.
    """

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._thread = LoopThread("rollbook webhooks")
        self._following: dict[str, Future[None]] = {}
        self._first_looks = asyncio.Semaphore(_OPENED_AT_ONCE)

    @property
    def partitions(self) -> Collection[str]:
        """The names of the partitions that are checked."""
        return list(self._following)

    def follow(self, partition: str, url: str, base_url: str) -> None:
        """Check a partition until it has no webhooks, or `close` or `leave` is called.

        Args:
            partition: the name of the partition.
            url: the URL of its database.
            base_url: the URL of the partition at the server, for links to pages.
        """
        future = self._following.get(partition)
        if future is None or future.done():
            self._following[partition] = self._thread.submit(self._attend(partition, url, base_url))

    def leave(self, partition: str) -> None:
        """Stop the checks of a partition."""
        if (future := self._following.pop(partition, None)) is not None:
            future.cancel()

    def close(self) -> None:
        """End the thread. Messages that are being sent are sent again by the next server."""
        for partition in self.partitions:
            self.leave(partition)
        self._thread.leave()

    async def _attend(self, partition: str, url: str, base_url: str) -> None:
        while True:
            try:
                # Most partitions have no webhooks, so their connection is closed again.
                async with self._first_looks, Webhooks.opened(url, read_only=True) as webhooks:
                    has_webhooks = bool(await webhooks.all())
                if has_webhooks:
                    async with Webhooks.opened(url) as webhooks:
                        await self._run(webhooks, base_url)
            except (NotFound, Incompatible):
                # The partition was dropped, or is a backup.
                return
            except StoreError as error:
                logger.warning("the webhooks of the partition %s are not checked at present: %s", partition, error)
            except Exception:
                # Webhooks must work while the server runs, so an unexpected error must not end the task.
                logger.exception("the webhooks of the partition %s are not checked at present", partition)
            else:
                return
            await asyncio.sleep(CHECK_SECONDS)

    async def _run(self, webhooks: Webhooks, base_url: str) -> None:
        sending: dict[str, asyncio.Task[Delivery | None]] = {}
        check_at = time.monotonic()
        try:
            while True:
                if (began := time.monotonic()) >= check_at:
                    if not await webhooks.all():
                        return
                    await webhooks.check(base_url)
                    ended = time.monotonic()
                    check_at = ended + max(CHECK_SECONDS, (ended - began) * _DUTY)
                for webhook, message in await webhooks.claim(lease_seconds=LEASE_SECONDS, busy=sending):
                    sending[webhook.webhook_id] = asyncio.create_task(
                        deliver(webhooks, webhook, message, allow_private=self._allow_private)
                    )
                due_at = await webhooks.next_at(sending)
                seconds = max(check_at - time.monotonic(), 0.0)
                if due_at is not None:
                    seconds = min(seconds, max((due_at - webhooks.now) / MICROSECONDS, 0.05))
                if sending:
                    await asyncio.wait(sending.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(seconds)
                for name in [name for name, task in sending.items() if task.done()]:
                    # An error of the database ends this loop, and the message is sent again after its lease.
                    sending.pop(name).result()
        finally:
            for task in sending.values():
                task.cancel()
            await asyncio.gather(*sending.values(), return_exceptions=True)
