"""LLM proxy: a reverse proxy between agents and model servers, the backends. It records every call as a span."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from store.errors import Invalid
from store.interface.store import Store
from store.llm_proxy.backends import Backend, from_model_list
from store.llm_proxy.recorder import CallRecorder
from store.llm_proxy.routes import Routes
from store.llm_proxy.serving import LaunchMode, Serving
from store.llm_proxy.settings import ProxySettings
from store.models import LLM, ProxyLLM
from store.wire.listener import bind, is_loopback, url_of

logger = logging.getLogger("store.training.proxy")

_START_SECONDS: Final = 30.0


class LLMProxy:
    """A reverse proxy for OpenAI's protocol and for Anthropic's Messages API. It writes one span for each call.

    Agents call `<endpoint>/rollout/<rollout_id>/attempt/<attempt_id>/v1/…`, or the plain endpoint with the headers
    `x-rollout-id` and `x-attempt-id`; calls without an attempt are forwarded but not recorded. Responses, including
    streams, are forwarded byte for byte. A client gets the end of a response only after the call's span is in the
    store. The spans of an attempt are numbered in the order in which the calls began. So a reward that the agent
    records after the call, or after the first bytes of a stream, has a greater number.
    Several proxies may run in one process, each with several backends. Backends may be replaced, paused and resumed
    from any thread while calls run. Calls to a proxy without backends wait as during a pause.

    `async with proxy` starts the proxy, and stops it at the end of the block. A proxy that already runs stays running.

    Args:
        port: the port to listen on; None for any free port.
        model_list: backends in LiteLLM's form; an alternative to `backends`.
        store: the store that receives the spans; any store of this package, in this process or behind a server.
        host: the address to listen on, by default only this machine. Other addresses require `api_key`.
        backends: the model servers.
        launch_mode: `thread` for a separate thread, `asyncio` for the event loop that calls `start`.
        api_key: the key that clients must send; it is not forwarded. With None, clients need no key.
        insecure: whether clients on other machines may call the proxy without a key.
        settings: time limits, retries and sizes; see `ProxySettings`.

    Raises:
        Invalid: both `model_list` and `backends` are given, two backends have one name, or other machines can reach the
            host without a key.
    """

    def __init__(
        self,
        port: int | None = None,
        model_list: Sequence[Mapping[str, Any]] | None = None,
        store: Store | None = None,
        host: str | None = None,
        *,
        backends: Sequence[Backend] | None = None,
        launch_mode: LaunchMode = "thread",
        api_key: str | None = None,
        insecure: bool = False,
        settings: ProxySettings | None = None,
    ) -> None:
        if model_list is not None and backends is not None:
            raise Invalid("model_list", "is given together with backends; give one of them")
        if launch_mode not in {"thread", "asyncio"}:
            raise Invalid("launch_mode", f"{launch_mode!r} is neither 'thread' nor 'asyncio'")
        self._host = host or "127.0.0.1"
        if api_key is None and not insecure and not is_loopback(self._host):
            raise Invalid("host", f"{self._host} can be reached by other machines; give an api_key, or insecure=True")
        self._port = port or 0
        self._store = store
        self._launch_mode: LaunchMode = launch_mode
        self._api_key = api_key
        self._settings = settings or ProxySettings()
        self._routes = Routes(from_model_list(model_list or ()) if backends is None else backends)
        self._serving: Serving | None = None
        self._pid = os.getpid()
        self._blocks: list[bool] = []
        """For each `async with` block that is open, whether the block started the proxy."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy of the proxy in another process.

        The copy is not running, but has the same endpoint. The copy can be started only while this proxy is stopped,
        because both proxies use the same port.
        """
        return {**self.__dict__, "_routes": self.backends, "_serving": None, "_blocks": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._routes = Routes(state["_routes"])

    @property
    def endpoint(self) -> str:
        """The base URL without `/v1`. Clients may add `/v1`.

        Raises:
            RuntimeError: the port is not known yet: no port was given, and the proxy was never started.
        """
        if not self._port:
            raise RuntimeError("the proxy has no port yet; start it first")
        return url_of(self._host, self._port)

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the proxy."""
        return is_loopback(self._host)

    @property
    def has_own_thread(self) -> bool:
        """Whether the proxy runs in a separate thread, and not in the event loop that starts the proxy."""
        return self._launch_mode == "thread"

    @property
    def is_running(self) -> bool:
        """Whether the proxy answers requests, or is starting."""
        return self._serving is not None and not self._serving.ended.done() and self._pid == os.getpid()

    async def start(self) -> None:
        """Start the proxy, and return when it is ready for requests. If the proxy is already running, do nothing.

        Raises:
            PortTaken: another program listens on the port.
        """
        if self.is_running:
            return
        self._pid = os.getpid()
        listener = await asyncio.to_thread(bind, self._host, self._port)
        self._port = listener.getsockname()[1]
        recorder = CallRecorder(self._store, self._settings.on_ended)
        serving = self._serving = Serving(listener, self._routes, recorder, self._settings, self._api_key)
        serving.launch(self._launch_mode)
        async with asyncio.timeout(_START_SECONDS):
            await asyncio.wrap_future(serving.started)

    async def stop(self) -> None:
        """Stop listening, and return when all calls in flight have ended and are recorded.

        Calls that do not end within the grace period are aborted. The proxy remembers its port for the next `start`.
        """
        if not self.is_running or self._serving is None:
            logger.warning("the proxy does not run; there is nothing to stop")
            return
        self._serving.stop()
        await asyncio.shield(asyncio.wrap_future(self._serving.ended))

    async def restart(self) -> None:
        """Stop the proxy if it runs, and start it on the same port. `update_backends` needs no restart."""
        if self.is_running:
            await self.stop()
        await self.start()

    async def __aenter__(self) -> Self:
        is_first = not self.is_running
        await self.start()
        self._blocks.append(is_first)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._blocks.pop() and self.is_running:
            await self.stop()

    def set_store(self, store: Store) -> None:
        """Set the store for spans. The change takes effect at the next `start`."""
        self._store = store

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The backends that new calls use."""
        return self._routes.backends

    def update_backends(self, backends: Sequence[Backend]) -> None:
        """Replace the backends for new calls; calls in flight finish on their backends. Any thread may call the method.

        Raises:
            Invalid: two backends have the same name.
        """
        self._routes.replace(backends)

    def update_model_list(self, model_list: Sequence[Mapping[str, Any]]) -> None:
        """Replace the backends as `update_backends` does, from a list in LiteLLM's form."""
        self._routes.replace(from_model_list(model_list))

    def pause(self, backend: str | None = None) -> None:
        """Start no further calls on a backend, for example while its weights are updated; None means all backends.

        New calls wait for `resume`. A call that has waited for `ProxySettings.wait_seconds` fails with 503 and
        Retry-After. Calls in flight continue; `drained` waits for these calls.

        Raises:
            NotFound: no backend has this name.
        """
        self._routes.pause(backend)

    def resume(self, backend: str | None = None) -> None:
        """End the pause of a backend, so that waiting calls start; without a name, end all pauses.

        Raises:
            NotFound: no backend has this name.
        """
        self._routes.resume(backend)

    async def drained(self, backend: str | None = None, *, longest: float | None = None) -> bool:
        """Wait until no call is in flight on a backend; without a name, until no call is in flight on any backend.

        Return True if this happens within `longest` seconds, otherwise False.
        """
        return await self._routes.drained(backend, longest)

    def in_flight(self, backend: str | None = None) -> int:
        """Return the number of calls in flight on a backend; without a name, on all backends together."""
        return self._routes.in_flight(backend)

    def as_resource(
        self,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        model: str | None = None,
        sampling_parameters: Mapping[str, Any] | None = None,
        *,
        with_api_key: bool = False,
    ) -> LLM:
        """Return the resource with which agents call the proxy.

        The caller publishes the resource with `store.add_resources`.

        Args:
            rollout_id: the rollout to which the recorded calls belong; requires `attempt_id`. Without ids, each agent
                that uses the resource adds the ids of its own attempt to the URL.
            attempt_id: the attempt to which the recorded calls belong; requires `rollout_id`.
            model: the name of the model. With None, the backends must declare exactly one model, which is used.
            sampling_parameters: the sampling parameters to store in the resource.
            with_api_key: whether the resource contains the proxy's key. The store's log keeps a resource for ever.

        Returns:
            A `ProxyLLM` without ids, or an `LLM` with both ids.

        Raises:
            ValueError: only one id is given, or no model is given and the backends do not declare exactly one model.
        """
        resource = ProxyLLM(
            endpoint=self.endpoint,
            model=model or self._only_model(),
            sampling_parameters=dict(sampling_parameters or {}),
            api_key=self._api_key if with_api_key else None,
        )
        if rollout_id is None and attempt_id is None:
            return resource
        return LLM(
            endpoint=resource.get_base_url(rollout_id, attempt_id),
            model=resource.model,
            sampling_parameters=resource.sampling_parameters,
            api_key=resource.api_key,
        )

    def _only_model(self) -> str:
        models = sorted({model for backend in self.backends for model in backend.models})
        if len(models) != 1:
            raise Invalid("model", f"is not given, and the backends declare {models or 'none'}; name one")
        return models[0]
