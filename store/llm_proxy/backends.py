"""The model servers behind a proxy, as its owner names them."""

from __future__ import annotations

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
    """A server that speaks OpenAI's protocol (or Anthropic's, for `/messages`), and what it can do.

    Raises:
        Invalid: the URL is none of HTTP, the name is empty, or a rate is not a positive number.
    """

    name: str
    """By which it is paused and recorded; unique in a proxy."""
    base_url: str
    """As OpenAI's clients take it, with its `/v1`; a URL without any path is taken to mean `/v1`."""
    api_key: str | None = field(default=None, repr=False)
    """Sent instead of the client's. None: the client's own key is passed on, unless the proxy has a key itself."""
    models: Mapping[str, str] | Sequence[str] = ()
    """The models it serves; a mapping goes from the name agents use to the backend's own. Empty: every model."""
    version: str | None = None
    """Of the weights it serves at present; recorded with every call, for filters of what is off-policy."""
    supports_token_ids: bool = False
    """Whether it understands `return_token_ids`, as vLLM does since 0.10.2."""
    supports_logprobs: bool = False
    """Whether `logprobs` are wanted from it."""
    requests_per_second: float | None = None
    """The most calls it is sent over time; None for no limit. Calls beyond it wait."""
    burst: int = 1
    """How many calls may start at once after a time of rest, under `requests_per_second`."""

    def __post_init__(self) -> None:
        if not self.name:
            raise Invalid("backend.name", "is empty; name each backend, the span of a call says which one answered")
        url = URL(self.base_url)
        if url.scheme not in {"http", "https"} or not url.host:
            raise Invalid("backend.base_url", f"{self.base_url!r} is no URL of HTTP; give https://host/v1")
        rate = self.requests_per_second
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise Invalid("backend.requests_per_second", f"{rate!r} is no rate; give a number above 0, or None")
        if self.burst < 1:
            raise Invalid("backend.burst", f"{self.burst} would let no call through; give 1 or more")

    @property
    def root(self) -> str:
        """The URL that the path of a call is put behind."""
        base = self.base_url.rstrip("/")
        return base + "/v1" if URL(base).path in {"", "/"} else base

    def serves(self, model: str | None) -> bool:
        """Say whether it declares a model."""
        return model is not None and model in self.models

    def own_name(self, model: str) -> str:
        """Return what the backend calls a model."""
        return self.models.get(model, model) if isinstance(self.models, Mapping) else model


def check_names(backends: Sequence[Backend]) -> tuple[Backend, ...]:
    """Return the backends as they came.

    Raises:
        Invalid: two have the same name.
    """
    seen: set[str] = set()
    for backend in backends:
        if backend.name in seen:
            raise Invalid("backends", f"two are named {backend.name!r}; pausing and recording go by the name")
        seen.add(backend.name)
    return tuple(backends)


def from_model_list(model_list: Sequence[Mapping[str, Any]]) -> tuple[Backend, ...]:
    """Return backends for a model list in LiteLLM's form, of those providers that need no translation.

    Args:
        model_list: entries of `model_name` and `litellm_params` with `model` (`hosted_vllm/…` or `openai/…`),
            `api_base` and `api_key`.

    Raises:
        Invalid: an entry has another form, or names a provider of another protocol.
    """
    return check_names([_from_entry(index, entry) for index, entry in enumerate(model_list)])


def _from_entry(index: int, entry: Mapping[str, Any]) -> Backend:
    place = f"model_list[{index}]"
    try:
        name, parameters = entry["model_name"], entry["litellm_params"]
        provider, slash, own = parameters["model"].partition("/")
        base, key = parameters["api_base"], parameters.get("api_key")
    except (KeyError, TypeError, AttributeError):
        raise Invalid(place, "needs model_name and litellm_params with model and api_base; or pass backends=") from None
    if not slash or provider not in _OPENAI_COMPATIBLE:
        known = ", ".join(f"{each}/…" for each in sorted(_OPENAI_COMPATIBLE))
        raise Invalid(place, f"model {parameters['model']!r} names none of {known}; pass backends= with its URL")
    return Backend(
        name=f"{name}#{index}",
        base_url=base,
        api_key=key,
        models={name: own},
        supports_token_ids=provider in _WITH_TOKEN_IDS,
    )
