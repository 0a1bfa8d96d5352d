"""Model servers for the versions of a policy, the model that a training improves.

A version is served by a thread of this process, or by vLLM on a machine with graphics cards.
"""

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
"""The name of the model at vLLM, which must be started with `--served-model-name policy`."""

_LOAD_SECONDS: Final = 600.0


class NotLoaded(StoreError, RuntimeError):
    """The model server did not load a version of the policy."""


class Inference(Protocol):
    """A model server that serves one version of the policy at a time."""

    @property
    def calls(self) -> int:
        """The number of answered calls; 0 if the server does not count calls."""
        ...

    @property
    def batches(self) -> int:
        """The number of batches of calls; 0 if the server does not count batches."""
        ...

    async def serve(self, name: str, weights: str) -> Backend:
        """Serve a version instead of the previous version.

        Args:
            name: the name that agents use for the version.
            weights: the text that `Models.save` returned for the version.

        Returns:
            The backend with which the proxy calls the server.
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
        """The number of batches of calls."""
        return self._server.batches

    async def serve(self, name: str, weights: str) -> Backend:
        """Serve a version as `Inference.serve` describes."""
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
    """A vLLM server. It must be started with `VLLM_SERVER_DEV_MODE=1`, and must be able to read the checkpoints.

    A checkpoint is a directory with the weights of one version.

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
        """Load the checkpoint with the path `weights` in place of the current weights.

        Raises:
            NotLoaded: vLLM refused a request, or vLLM cannot be reached.
        """
        await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": weights}})
        # The content of the prefix cache was computed with the old weights.
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
            f"vLLM did not answer POST {path} as expected ({problem}); start vLLM with VLLM_SERVER_DEV_MODE=1, on a "
            "machine that can read the directory of the checkpoints"
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
