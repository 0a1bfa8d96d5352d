"""Check of documents against ATIF 1.0 to 1.8. It is stricter than ATIF's published models.

The published models accept token ids and log probabilities of different lengths, repeated ids of tool calls, negative
counts, and numbers that are not finite. This check refuses these values, because they would become wrong training data.
Like the published models, it applies the same rules to all versions.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from math import isfinite
from typing import Annotated, Any, Final, Literal, Self, cast

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from store.errors import Incompatible, Invalid
from store.model_calls.json_values import Json

VERSIONS: Final = tuple(f"ATIF-v1.{minor}" for minor in range(9))
_MOST_ERRORS: Final = 3


def read_document(content: bytes) -> Json:
    """Return the document in a file.

    Raises:
        Invalid: the file is not JSON, or is not a document of ATIF; the message names the fields.
        Incompatible: the document has another version.
    """
    try:
        document: Any = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        document = _python_json(content, error)
    if not isinstance(document, dict):
        raise Invalid("document", "is not a JSON object")
    fields = cast("Json", document)
    version = fields.get("schema_version", VERSIONS[-1])
    if version not in VERSIONS:
        raise Incompatible(
            f"schema_version is {str(version)[:40]!r}, and this program reads {VERSIONS[0]} to {VERSIONS[-1]}",
            "convert the document to one of these versions",
        )
    try:
        _Trajectory.model_validate(fields)
    except ValidationError as error:
        raise described(error) from None
    except RecursionError:
        raise Invalid("document", "is nested too deeply") from None
    return fields


def described(error: ValidationError, place: Sequence[str | int] = ()) -> Invalid:
    """Return the error for the invalid fields that a validation found. `place` is the path of the validated object."""
    errors = error.errors(include_url=False, include_input=False)
    texts = [f"{_path((*place, *one['loc']))}: {one['msg'].removeprefix('Value error, ')}" for one in errors]
    more = f"; and {len(texts) - _MOST_ERRORS} more" if len(texts) > _MOST_ERRORS else ""
    return Invalid("document", f"{'; '.join(texts[:_MOST_ERRORS])}{more}")


def _path(places: Sequence[str | int]) -> str:
    """Return the path of a field, such as `steps[3].tool_calls[0].arguments`."""
    path = ""
    for place in places:
        if isinstance(place, int):
            path += f"[{place}]"
        elif place.isidentifier():  # other texts are names that pydantic gives to members of unions
            path += f".{place}" if path else place
    return path or "document"


def _python_json(content: bytes, error: orjson.JSONDecodeError) -> Any:
    """Return the value of JSON text as Python reads it. Unlike orjson, Python also accepts `NaN` and `Infinity`.

    Raises:
        Invalid: the content is not JSON, or contains a number that is not finite.
    """
    try:
        document = json.loads(content.removeprefix(codecs.BOM_UTF8).decode())
    except (ValueError, RecursionError):
        raise Invalid("document", f"is not JSON: {error}") from None
    for place in _infinite(document, ()):
        raise Invalid("document", f"{_path(place)}: NaN and infinite numbers are not JSON")
    return document


def _infinite(value: Any, place: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of the numbers that are not finite."""
    if isinstance(value, float) and not isfinite(value):
        yield place
    elif isinstance(value, dict):
        for name, item in cast("Json", value).items():
            yield from _infinite(item, (*place, name))
    elif isinstance(value, list):
        for number, item in enumerate(cast("list[Any]", value)):
            yield from _infinite(item, (*place, number))


def _is_time(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a time in ISO 8601") from None
    return text


Count = Annotated[int, Field(ge=0)]
Time = Annotated[str, AfterValidator(_is_time)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Image(_Part):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    path: str


class _Audio(_Part):
    media_type: Annotated[str, Field(pattern="^audio/")]
    path: str
    duration_sec: Annotated[float, Field(ge=0)] | None = None


class _TextContent(_Part):
    type: Literal["text"]
    text: str
    source: None = None


class _ImageContent(_Part):
    type: Literal["image"]
    source: _Image
    text: None = None


class _AudioContent(_Part):
    type: Literal["audio"]
    source: _Audio
    text: None = None


Content = list[Annotated[_TextContent | _ImageContent | _AudioContent, Field(discriminator="type")]]


class _Metrics(_Part):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[Count] | None = None
    completion_token_ids: list[Count] | None = None
    logprobs: list[float] | None = None
    extra: Json | None = None

    @model_validator(mode="after")
    def _has_a_logprob_for_each_token(self) -> Self:
        if self.logprobs and self.completion_token_ids and len(self.logprobs) != len(self.completion_token_ids):
            raise ValueError(
                f"logprobs has {len(self.logprobs)} values for {len(self.completion_token_ids)} completion_token_ids"
            )
        return self


class _FinalMetrics(_Part):
    total_prompt_tokens: Count | None = None
    total_completion_tokens: Count | None = None
    total_cached_tokens: Count | None = None
    total_cost_usd: float | None = None
    total_steps: Count | None = None
    extra: Json | None = None


class _ToolCall(_Part):
    tool_call_id: str
    function_name: str
    arguments: Json
    extra: Json | None = None


class _Ref(_Part):
    trajectory_id: str | None = None
    trajectory_path: str | None = None
    session_id: str | None = None
    extra: Json | None = None

    @model_validator(mode="after")
    def _names_a_trajectory(self) -> Self:
        if self.trajectory_id is None and self.trajectory_path is None:
            raise ValueError("a reference needs a trajectory_id or a trajectory_path")
        return self


class _Result(_Part):
    source_call_id: str | None = None
    content: str | Content | None = None
    subagent_trajectory_ref: list[_Ref] | None = None
    extra: Json | None = None


class _Observation(_Part):
    results: list[_Result]


class _Step(_Part):
    step_id: int
    timestamp: Time | None = None
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    message: str | Content
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None
    observation: _Observation | None = None
    metrics: _Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: Count | None = None
    extra: Json | None = None

    @model_validator(mode="after")
    def _has_fields_of_its_source(self) -> Self:
        of_agents = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")
        refused = of_agents if self.source != "agent" else ()
        if self.source == "agent" and self.llm_call_count == 0:
            refused = ("metrics", "reasoning_content")
        for name in refused:
            if getattr(self, name) is not None:
                calls = " with llm_call_count 0" if self.source == "agent" else ""
                raise ValueError(f"a step of the source {self.source!r}{calls} has no {name}")
        return self

    @model_validator(mode="after")
    def _has_results_of_its_own_calls(self) -> Self:
        ids = [call.tool_call_id for call in self.tool_calls or ()]
        if len(set(ids)) < len(ids):
            twice = next(one for place, one in enumerate(ids) if one in ids[:place])
            raise ValueError(f"tool_calls have the tool_call_id {twice!r} twice")
        for result in self.observation.results if self.observation is not None else ():
            if result.source_call_id is not None and result.source_call_id not in ids:
                raise ValueError(f"no tool call of the step has the id {result.source_call_id!r} of a source_call_id")
        return self


class _Agent(_Part):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[Json] | None = None
    extra: Json | None = None


class _Trajectory(_Part):
    schema_version: str = VERSIONS[-1]
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: _Agent
    steps: Annotated[list[_Step], Field(min_length=1)]
    notes: str | None = None
    final_metrics: _FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    extra: Json | None = None
    subagent_trajectories: list[_Trajectory] | None = None

    @model_validator(mode="after")
    def _counts_its_steps(self) -> Self:
        for number, step in enumerate(self.steps, start=1):
            if step.step_id != number:
                raise ValueError(f"steps[{number - 1}].step_id is {step.step_id}; steps are numbered 1, 2, 3 …")
        return self

    @model_validator(mode="after")
    def _tells_its_parts_apart(self) -> Self:
        ids: set[str] = set()
        for number, embedded in enumerate(self.subagent_trajectories or ()):
            if embedded.trajectory_id is None or embedded.trajectory_id in ids:
                reason = "is missing" if embedded.trajectory_id is None else f"{embedded.trajectory_id!r} occurs twice"
                raise ValueError(f"subagent_trajectories[{number}].trajectory_id {reason}")
            ids.add(embedded.trajectory_id)
        return self
