"""Declarations of the model servers behind a proxy."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from yarl import URL

from store.errors import Invalid

_WITH_TOKEN_IDS: Final = frozenset({"hosted_vllm", "vllm"})
_OPENAI_COMPATIBLE: Final = frozenset({"openai", "custom_openai", *_WITH_TOKEN_IDS})


@dataclass(frozen=True, slots=True)
class Backend:
    """A model server and its capabilities.

    Without `provider`, calls are not translated. The server must then support OpenAI's protocol, or for `/messages`
    Anthropic's protocol.

    Raises:
        Invalid: the name is empty, the URL is not an HTTP URL, the rate is not a positive number, `burst` is less than
            1, `options` are given without a provider, or a provider is given and LiteLLM is not installed.
    """

    name: str
    """The name for `pause` and for the spans of calls. The names of a proxy's backends must differ."""
    base_url: str = ""
    """The base URL in the form of OpenAI's clients, with `/v1`. If the URL has no path, `/v1` is appended.

    With `provider`, the URL has the form that LiteLLM expects; an empty URL means the provider's default.
    """
    api_key: str | None = field(default=None, repr=False)
    """The key that the proxy sends to the backend instead of the client's key.

    With None, the proxy forwards the client's key, unless the proxy itself requires a key from clients.
    """
    models: Mapping[str, str] | Sequence[str] = ()
    """The names of the models that the backend serves. An empty value means that the backend may serve any model.

    In a mapping, each key is the name that agents use, and the value is the backend's name of the model.
    """
    version: str | None = None
    """The version of the backend's current weights.

    The version is recorded with every call, so that training can leave out calls to older weights.
    """
    supports_token_ids: bool = False
    """Whether the backend supports the request field `return_token_ids`, as vLLM does since 0.10.2."""
    supports_logprobs: bool = False
    """Whether the proxy requests `logprobs` from the backend."""
    requests_per_second: float | None = None
    """The maximum rate at which calls start; None for no limit. Calls beyond the rate wait."""
    burst: int = 1
    """The maximum number of calls that start at once after an idle time, if `requests_per_second` is set."""
    provider: str | None = None
    """A provider that LiteLLM supports, such as `anthropic`, `azure`, `gemini` or `ollama`.

    LiteLLM translates calls to the provider's protocol. With None, calls are not translated.
    """
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments for LiteLLM, such as `api_version`. They require `provider`."""

    def __post_init__(self) -> None:
        if not self.name:
            raise Invalid("backend.name", "is empty; name each backend, since spans record the name")
        if self.provider is not None:
            if importlib.util.find_spec("litellm") is None:
                raise Invalid("backend.provider", "needs LiteLLM; run pip install 'rollbook[litellm]'")
        elif self.options:
            raise Invalid("backend.options", "are LiteLLM's, so they need a provider")
        url = URL(self.base_url)
        if ((self.base_url or self.provider is None) and url.scheme not in {"http", "https"}) or not url.host:
            raise Invalid("backend.base_url", f"{self.base_url!r} is not an HTTP URL; give https://host/v1")
        rate = self.requests_per_second
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise Invalid("backend.requests_per_second", f"{rate!r} is not a rate; give a number above 0, or None")
        if self.burst < 1:
            raise Invalid("backend.burst", f"{self.burst} would allow no calls; give 1 or more")

    @property
    def root(self) -> str:
        """The URL to which the path of a call is appended."""
        base = self.base_url.rstrip("/")
        return base + "/v1" if URL(base).path in {"", "/"} else base

    def serves(self, model: str | None) -> bool:
        """Return whether the backend declares a model."""
        return model is not None and model in self.models

    def own_name(self, model: str) -> str:
        """Return the backend's own name for a model."""
        return self.models.get(model, model) if isinstance(self.models, Mapping) else model


def check_names(backends: Sequence[Backend]) -> tuple[Backend, ...]:
    """Return the backends unchanged.

    Raises:
        Invalid: two backends have the same name.
    """
    names: set[str] = set()
    for backend in backends:
        if backend.name in names:
            raise Invalid("backends", f"two backends have the name {backend.name!r}; give each its own name")
        names.add(backend.name)
    return tuple(backends)


def from_model_list(model_list: Sequence[Mapping[str, Any]]) -> tuple[Backend, ...]:
    """Return backends for a model list in LiteLLM's form.

    Args:
        model_list: entries with `model_name` and `litellm_params`. The latter contains `model`, and may contain
            `api_base`, `api_key` and further arguments of LiteLLM. Models of the providers `hosted_vllm` and `vllm`
            are called directly, and so are models of `openai` and `custom_openai` with an `api_base`. All other models
            are called through LiteLLM.

    Raises:
        Invalid: an entry has another form, or an entry needs LiteLLM and LiteLLM is not installed.
    """
    return check_names([_from_entry(index, entry) for index, entry in enumerate(model_list)])


def _from_entry(index: int, entry: Mapping[str, Any]) -> Backend:
    field = f"model_list[{index}]"
    try:
        name, parameters = entry["model_name"], dict(entry["litellm_params"])
        provider, slash, model = parameters.pop("model").partition("/")
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Invalid(field, "needs model_name and litellm_params with model; or pass backends=") from None
    if not slash:
        raise Invalid(field, f"model {provider!r} has no provider; write for example openai/{provider}")
    base, key = parameters.pop("api_base", None) or "", parameters.pop("api_key", None)
    is_forwarded = provider in _OPENAI_COMPATIBLE and (base or provider in _WITH_TOKEN_IDS)
    try:
        return Backend(
            name=f"{name}#{index}",
            base_url=base,
            api_key=key,
            models={name: model},
            supports_token_ids=provider in _WITH_TOKEN_IDS,
            provider=None if is_forwarded else provider,
            options={} if is_forwarded else parameters,
        )
    except Invalid as error:
        raise Invalid(field, f"model {provider}/{model}: {error}") from None
