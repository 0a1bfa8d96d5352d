"""Where the versions of a policy are served: in this process, or by vLLM on a machine with graphics cards."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import aiohttp

from store.errors import StoreError
from store.examples.guess_number.models import Models
from store.examples.guess_number.server import PolicyServer
from store.llm_proxy import Backend

if TYPE_CHECKING:
    from types import TracebackType

SERVED_MODEL: Final = "policy"
"""The name under which vLLM serves the model: `--served-model-name policy`."""

_LOAD_SECONDS: Final = 600.0


class NotLoaded(StoreError, RuntimeError):
    """The model server did not load a version of the policy."""


class Inference(Protocol):
    """A model server, which serves one version of the policy at a time."""

    @property
    def calls(self) -> int:
        """The number of answered calls, as far as known."""
        ...

    @property
    def batches(self) -> int:
        """The number of batches, as far as known."""
        ...

    async def serve(self, name: str, weights: str) -> Backend:
        """Serve a version under this name from now on, and return the proxy's backend for it.

        Args:
            name: the name of the version, which agents use.
            weights: the weights, as `Models.save` returned them.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LocalInference:
    """A `PolicyServer` in a thread of this process."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._server = PolicyServer(models.vocabulary)

    @property
    def calls(self) -> int:
        """The number of answered calls."""
        return self._server.calls

    @property
    def batches(self) -> int:
        """The number of batches."""
        return self._server.batches

    async def serve(self, name: str, weights: str) -> Backend:
        """Serve a version."""
        self._server.serve(name, self._models.load(weights))
        return _backend(self._server.url, name, name)

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.__aexit__(kind, error, trace)


class VllmInference:
    """A vLLM that was started with `VLLM_SERVER_DEV_MODE=1`, and can read the directories of the checkpoints.

    Args:
        url: the address of vLLM, without `/v1`.
    """

    def __init__(self, url: str) -> None:
        self.calls = 0
        self.batches = 0
        self._url = url.rstrip("/").removesuffix("/v1")
        self._until_exit = AsyncExitStack()
        self._http: aiohttp.ClientSession | None = None

    async def serve(self, name: str, weights: str) -> Backend:
        """Load a checkpoint in place of the current weights.

        Raises:
            NotLoaded: vLLM refused, or cannot be reached.
        """
        await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": weights}})
        # The cache of prefixes was computed with the old weights.
        await self._post("/reset_prefix_cache", None)
        return _backend(f"{self._url}/v1", name, SERVED_MODEL)

    async def _post(self, path: str, body: Any) -> None:
        assert self._http is not None  # set by `__aenter__`
        try:
            async with self._http.post(f"{self._url}{path}", json=body) as answer:
                if answer.status == 200:
                    return
                problem = f"{answer.status}: {(await answer.text())[:500]}"
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = f"{type(error).__name__}: {error}"
        raise NotLoaded(
            f"vLLM did not answer POST {path} as expected ({problem}); start it with VLLM_SERVER_DEV_MODE=1, where the "
            "directory of the checkpoints can be read"
        )

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_LOAD_SECONDS)
        self._http = await self._until_exit.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._until_exit.aclose()


def _backend(url: str, name: str, served: str) -> Backend:
    return Backend("policy", url, models={name: served}, version=name, supports_token_ids=True, supports_logprobs=True)
