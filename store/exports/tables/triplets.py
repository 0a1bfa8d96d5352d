"""The table `triplets`: prompt, response and reward of each model call, as `TracerTraceToTriplet` returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from store.adapters.triplets import TracerTraceToTriplet
from store.exports.records import RolloutRecord
from store.exports.schema import Row, Table, TableColumn
from store.exports.source import SCORES as READ_SCORES
from store.exports.source import SPANS as READ_SPANS
from store.exports.tables.columns import ATTEMPT_ID, ROLLOUT_ID, json_text

_ADAPTER: Final = TracerTraceToTriplet()


def triplet_rows(record: RolloutRecord) -> Sequence[Row]:
    """Return the rows of a rollout's triplets."""
    rows: list[Row] = []
    for attempt in record.attempt_spans:
        spans = [timed.span for timed in attempt.spans]
        scores = None if record.reward_version is None else record.version_scores.values()
        triplets = _ADAPTER.adapt(spans, scores)
        for number, triplet in enumerate(triplets, start=1):
            prompt: dict[str, Any] = triplet.prompt
            response: dict[str, Any] = triplet.response
            metadata = triplet.metadata
            rows.append(
                (
                    metadata["rollout_id"],
                    metadata["attempt_id"],
                    number,
                    metadata["sequence_id"],
                    json_text(metadata["span_ids"]),
                    metadata["agent_name"],
                    metadata["response_id"],
                    metadata["model_version"],
                    metadata.get("choice"),
                    triplet.reward,
                    json_text(metadata["rewards"]),
                    prompt["token_ids"] or None,
                    response["token_ids"] or None,
                    json_text(response.get("logprobs")),
                    json_text(prompt["raw_content"]),
                    json_text(response["raw_content"]),
                    json_text(prompt["image_urls"]),
                    json_text(metadata["request"]),
                )
            )
    return rows


TRIPLETS: Final = Table(
    "triplets",
    "One row for each prompt and response with its reward, as the adapters of training data make them.",
    (
        ROLLOUT_ID,
        ATTEMPT_ID,
        TableColumn("number", "int64", "The number of the triplet in its attempt, from 1.", is_nullable=False),
        TableColumn("sequence_id", "int64", "The number of the call's span in its rollout.", is_nullable=False),
        TableColumn("span_ids", "json", "All spans that record the call."),
        TableColumn("agent_name", "text", "The agent that made the call; `*` if it is unknown."),
        TableColumn("response_id", "text", "The id of the response."),
        TableColumn("model_version", "text", "The version of the weights, if a proxy recorded it."),
        TableColumn("choice", "int64", "The number of the choice, if several choices became triplets."),
        TableColumn("reward", "float64", "The primary reward of the call."),
        TableColumn("rewards", "json", "All values of the reward by name."),
        TableColumn("prompt_token_ids", "int64s", "The token ids of the prompt."),
        TableColumn("response_token_ids", "int64s", "The token ids of the response."),
        TableColumn("logprobs", "json", "For each token of the response, a number or an object with `logprob`."),
        TableColumn("prompt", "json", "The messages of the prompt as recorded."),
        TableColumn("response", "json", "The choices as recorded."),
        TableColumn("image_urls", "json", "The URLs of images in the prompt."),
        TableColumn("request", "json", "The parameters of the request."),
    ),
    triplet_rows,
    reads=frozenset({READ_SPANS, READ_SCORES}),
    bulk=(13, 14, 15),
)
