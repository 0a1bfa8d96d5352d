"""Selection of a backend for each call, by the models, the pauses, the load and the rate limits of the backends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

from store.errors import NotFound
from store.llm_proxy.backends import Backend, check_names
from store.llm_proxy.refusals import Refusal
from store.runtime.rates import TokenBucket


@dataclass(eq=False, slots=True)
class ActiveBackend:
    """A backend with its rate limiter and the number of its calls in flight."""

    backend: Backend
    bucket: TokenBucket | None
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """The current state of a backend."""

    name: str
    version: str | None
    models: tuple[str, ...]
    in_flight: int
    is_paused: bool


class Routes:
    """The backends of a proxy. Any thread may replace, pause and resume backends while the proxy's loop runs calls."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._lock = Lock()
        self._active: tuple[ActiveBackend, ...] = ()
        # These backends were replaced, but still have calls in flight.
        self._replaced: list[ActiveBackend] = []
        self._paused: set[str] = set()
        self._all_paused = False
        self._is_closed = False
        self._waiting_calls = 0
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.replace(backends)

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The backends that new calls use."""
        return tuple(active.backend for active in self._active)

    @property
    def waiting_calls(self) -> int:
        """The number of calls that wait for a paused backend or because of a rate limit."""
        return self._waiting_calls

    def health(self) -> list[BackendHealth]:
        """Return the state of each backend."""
        with self._lock:
            return [
                BackendHealth(
                    active.backend.name,
                    active.backend.version,
                    tuple(active.backend.models),
                    active.in_flight,
                    self._is_paused(active.backend.name),
                )
                for active in self._active
            ]

    def replace(self, backends: Sequence[Backend]) -> None:
        """Replace the backends for new calls; calls in flight finish on their backends.

        If a new backend has the name of a paused backend, the new backend is paused.

        Raises:
            Invalid: two backends have the same name.
        """
        checked = check_names(backends)
        with self._lock:
            previous = {active.backend.name: active for active in self._active}
            self._replaced += [active for active in self._active if active.in_flight]
            self._active = tuple(
                ActiveBackend(backend, _bucket(backend, previous.get(backend.name))) for backend in checked
            )
            self._paused &= {backend.name for backend in checked}
        self._wake()

    def pause(self, name: str | None) -> None:
        """Start no further calls on a backend; if the name is None, start no further calls on all backends.

        Raises:
            NotFound: no backend has this name.
        """
        with self._lock:
            if name is None:
                self._all_paused = True
            else:
                self._check_name(name)
                self._paused.add(name)

    def resume(self, name: str | None) -> None:
        """End the pause of a backend; if the name is None, end all pauses.

        Raises:
            NotFound: no backend has this name.
        """
        with self._lock:
            if name is None:
                self._all_paused = False
                self._paused.clear()
            else:
                self._check_name(name)
                self._paused.discard(name)
        self._wake()

    def in_flight(self, name: str | None) -> int:
        """Return the number of calls in flight on a backend, or on all backends if the name is None.

        The calls that still run on replaced backends are included.
        """
        with self._lock:
            return self._in_flight(name)

    async def drained(self, name: str | None, longest: float | None) -> bool:
        """Wait until no call is in flight on a backend; if the name is None, until no call is in flight on any backend.

        Return True if this happens within `longest` seconds, otherwise False.
        """
        deadline = None if longest is None else time.monotonic() + longest
        while True:
            with self._lock:
                if not self._in_flight(name):
                    return True
                change = self._next_change()
            if not await self._await_change(change, None if deadline is None else deadline - time.monotonic()):
                return False

    def open(self) -> None:
        """Accept calls."""
        self._is_closed = False

    def close(self) -> None:
        """Refuse all waiting and new calls."""
        self._is_closed = True
        self._wake()

    async def enter(self, model: str | None, longest: float, avoid: str | None = None) -> ActiveBackend:
        """Return a backend for a call. The call counts as in flight on this backend until `leave` is called.

        The method waits while the proxy has no backend, while all backends of the model are paused, and while the rate
        limit allows no further call.

        Args:
            model: the name of the model in the request, or None.
            longest: the maximum wait in seconds.
            avoid: the name of a backend that is used only if no other backend is available.

        Raises:
            Refusal: 404 if no backend serves the model; 429 if a rate limit requires a longer wait; 503 if the backends
                stay paused for longer, if the proxy gets no backend in that time, or if the proxy is stopping.
        """
        deadline = time.monotonic() + longest
        while True:
            with self._lock:
                active = self._choose(model, avoid)
                wait = 0.0 if active is None else _admit(active, max(0.0, deadline - time.monotonic()))
                change = self._next_change() if active is None else None
            if active is not None and not wait:
                return active
            self._waiting_calls += 1
            try:
                if change is not None and not await self._await_change(change, deadline - time.monotonic()):
                    if not self._active:
                        raise Refusal(503, "the proxy has no backend yet; try again", "no_backend", 1.0)
                    raise Refusal(503, "the model is paused while its weights are updated; try again", "paused", 1.0)
                if active is not None and await self._enter_after(active, wait):
                    return active
            finally:
                self._waiting_calls -= 1

    async def _enter_after(self, active: ActiveBackend, wait: float) -> bool:
        """Wait for the start that the rate limiter reserved, and start the call.

        Return False, and do not start the call, if the backend was paused or replaced during the wait, or if the proxy
        is stopping.
        """
        try:
            await asyncio.sleep(wait)
        except asyncio.CancelledError:
            with self._lock:
                _give_back(active)
            raise
        with self._lock:
            can_start = active in self._active and not self._is_paused(active.backend.name) and not self._is_closed
            if can_start:
                active.in_flight += 1
            else:
                _give_back(active)
        return can_start

    def leave(self, active: ActiveBackend) -> None:
        """End a call on a backend."""
        with self._lock:
            active.in_flight -= 1
            is_idle = not active.in_flight
            if is_idle and active in self._replaced:
                self._replaced.remove(active)
        if is_idle:
            self._wake()

    def declared(self) -> list[tuple[str, str]] | None:
        """Return each declared model with the name of its backend; None if a backend declares no models.

        A backend that declares no models may serve any model, so a list of the models would be incomplete.
        """
        backends = self._active
        if any(not active.backend.models for active in backends):
            return None
        return [(model, active.backend.name) for active in backends for model in active.backend.models]

    def _choose(self, model: str | None, avoid: str | None) -> ActiveBackend | None:
        """Return the least busy backend of a model.

        Return None if all backends of the model are paused, or if the proxy has no backends.
        """
        if self._is_closed:
            raise Refusal(503, "the proxy is stopping; try again", "stopping", 1.0)
        if not self._active:
            return None
        serving = [active for active in self._active if active.backend.serves(model)]
        if not serving:
            serving = [active for active in self._active if not active.backend.models or model is None]
        if not serving:
            models = sorted({name for active in self._active for name in active.backend.models})
            raise Refusal(404, f"no backend serves the model {model!r}; there is {models}", "model_not_found")
        free = [active for active in serving if not self._is_paused(active.backend.name)]
        return min(free, key=lambda active: (active.backend.name == avoid, active.in_flight), default=None)

    def _is_paused(self, name: str) -> bool:
        return self._all_paused or name in self._paused

    def _check_name(self, name: str) -> None:
        names = [active.backend.name for active in self._active]
        if name not in names:
            raise NotFound("backend", name, f"no backend is named {name!r}; the backends are {names or 'none'}")

    def _in_flight(self, name: str | None) -> int:
        backends = (*self._active, *self._replaced)
        return sum(active.in_flight for active in backends if name is None or active.backend.name == name)

    def _next_change(self) -> asyncio.Future[None]:
        """Return a future that is done after the next change. The caller must hold the lock."""
        loop = asyncio.get_running_loop()
        change = loop.create_future()
        self._waiting.append((loop, change))
        return change

    async def _await_change(self, change: asyncio.Future[None], longest: float | None) -> bool:
        try:
            done, _ = await asyncio.wait([change], timeout=None if longest is None else max(longest, 0))
        finally:
            with self._lock:
                self._waiting = [waiting for waiting in self._waiting if waiting[1] is not change]
        return bool(done)

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for loop, change in waiting:
            with suppress(RuntimeError):  # the loop is closed, so no call waits in it
                loop.call_soon_threadsafe(_end, change)


def _end(change: asyncio.Future[None]) -> None:
    if not change.done():
        change.set_result(None)


def _bucket(backend: Backend, previous: ActiveBackend | None) -> TokenBucket | None:
    """Return the rate limiter of a backend, or None if the backend has no rate limit.

    If the replaced backend of this name had the same limit, its limiter is used again. A new limiter would allow a
    further burst of calls.
    """
    if backend.requests_per_second is None:
        return None
    if previous is not None and previous.bucket is not None:
        old = previous.backend
        if (old.requests_per_second, old.burst) == (backend.requests_per_second, backend.burst):
            return previous.bucket
    return TokenBucket(backend.requests_per_second, backend.burst)


def _admit(active: ActiveBackend, longest: float) -> float:
    """Start a call and return 0, or reserve a later start and return the seconds until then.

    Raises:
        Refusal: 429 if the wait would be longer than `longest` seconds.
    """
    if active.bucket is not None:
        is_admitted, wait = active.bucket.take(longest)
        if not is_admitted:
            name, rate = active.backend.name, active.backend.requests_per_second
            raise Refusal(
                429,
                f"{name} takes {rate:g} calls a second, and too many calls wait; try again",
                "rate_limited",
                wait,
            )
        if wait:
            return wait
    active.in_flight += 1
    return 0.0


def _give_back(active: ActiveBackend) -> None:
    if active.bucket is not None:
        active.bucket.give_back()
