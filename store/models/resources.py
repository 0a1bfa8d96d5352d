"""Resources that an algorithm gives to agents: model endpoints, prompts and phase graphs, versioned as a set."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from store.models.enums import Frozen, Resource
from store.models.phases import PhaseGraph


class LLM(Resource):
    """A language model behind an OpenAI-compatible endpoint."""

    resource_type: Literal["llm"] = "llm"
    endpoint: str
    """Base URL of the API."""
    model: str
    api_key: str | None = None
    sampling_parameters: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Passed to the model unchanged: temperature, max_tokens …"""

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """Return the URL to call. The URL of an endpoint without a proxy is the same for all attempts."""
        del rollout_id, attempt_id
        return self.endpoint


class ProxyLLM(LLM):
    """A language model behind a proxy. The proxy records every call for the attempt that the URL's path names."""

    # This class has its own `resource_type`, because each value selects exactly one class. It inherits from `LLM`,
    # because agents use isinstance(resource, LLM) for both classes.
    resource_type: Literal["proxy_llm"] = "proxy_llm"  # pyright: ignore[reportIncompatibleVariableOverride]

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """Return the URL at which the proxy records calls for an attempt, or the endpoint if neither id is given.

        `/rollout/<rollout_id>/attempt/<attempt_id>` is inserted before a trailing `/v1` of the endpoint, or appended if
        there is none. A trailing slash is dropped.

        Raises:
            ValueError: only one of the two ids was given.
        """
        if rollout_id is None and attempt_id is None:
            return self.endpoint
        if rollout_id is None or attempt_id is None:
            raise ValueError("give rollout_id and attempt_id together, or neither of them")
        base = self.endpoint.rstrip("/")
        root = base.removesuffix("/v1")
        return f"{root}/rollout/{rollout_id}/attempt/{attempt_id}{base[len(root) :]}"


class PromptTemplate(Resource):
    """A prompt with placeholders."""

    resource_type: Literal["prompt_template"] = "prompt_template"
    template: str
    engine: Literal["jinja", "f-string", "poml"]

    def format(self, **values: Any) -> str:
        """Return the template with its placeholders filled.

        Raises:
            NotImplementedError: the engine is not `f-string`; render the template with the engine's own library.
            KeyError: a placeholder has no value.
        """
        if self.engine != "f-string":
            raise NotImplementedError(
                f"render {self.engine} templates with {self.engine} itself; only f-string is built in"
            )
        return self.template.format(**values)


ResourceUnion = Annotated[LLM | ProxyLLM | PromptTemplate | PhaseGraph, Field(discriminator="resource_type")]
NamedResources = dict[str, ResourceUnion]


class ResourcesUpdate(Frozen):
    """One version of a set of named resources under one id."""

    resources_id: str
    create_time: float
    """When the id was first published, in float seconds since the epoch. Updates do not change this time."""
    update_time: float
    version: int
    """The number of the version: 1 for the first, and one more with every update of this id."""
    resources: NamedResources
