"""The rows that training makes of triplets, token by token: text, mask, log probability and version of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from store.adapters.records import Triplet
from store.adapters.rows import Trajectories, trajectories

MOST_TRIPLETS: Final = 500
"""The maximum number of triplets of which rows are made."""
MOST_TOKENS: Final = 1_500
"""The maximum number of tokens that a page shows, unless one row is requested."""
MOST_OF_ONE_ROW: Final = 20_000
_MOST_CELLS: Final = 2_000_000
"""The maximum number of tokens of a batch, including padding."""
ROW_RULES: Final[Mapping[str, str]] = {
    "no_prompt_tokens": "The prompt has no token ids.",
    "no_response_tokens": "The response has no token ids.",
    "no_reward": "The call has no reward; trainers may state a reward for such calls (`missing_reward`).",
    "no_log_probs": "A token has no log probability; the trainer computes all of the row.",
}
"""The reasons for which a triplet gives no row or an incomplete row."""

Certainty = Literal["likely", "unsure", "unlikely", "unknown"]


@dataclass(frozen=True, slots=True)
class TokenCell:
    """One token of a response."""

    id: int
    text: str | None
    """The text of the token, if it was recorded."""
    log_prob: float | None
    """The natural logarithm of the probability with which the token was sampled, if it was recorded."""
    is_trained: bool
    """Whether the mask is 1: the model generated the token."""

    @property
    def certainty(self) -> Certainty:
        """The class of the probability: from 0.5 on, from 0.05 on, or below."""
        if self.log_prob is None or not self.is_trained:
            return "unknown"
        return "likely" if self.log_prob >= -0.6931 else "unsure" if self.log_prob >= -2.9957 else "unlikely"


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One row of training."""

    number: int
    """The number of the row, from 1."""
    sequence_ids: Sequence[int]
    """The numbers of the spans of the calls."""
    span_ids: Sequence[str]
    prompt_tokens: int
    trained_tokens: int
    """The number of tokens with mask 1."""
    masked_tokens: int
    """The number of tokens of the response with mask 0, which are between the responses of a conversation."""
    score: float
    """The sum of the rewards of the row."""
    mean_log_prob: float | None
    """The mean over the trained tokens; None if one of them has no log probability."""
    model_versions: Sequence[str]
    """The versions of the weights that generated the tokens, if a proxy recorded them."""
    tokens: Sequence[TokenCell]
    """The first tokens of the response."""
    token_count: int
    """The number of all tokens of the response."""


@dataclass(frozen=True, slots=True)
class RowOmission:
    """A triplet that gives no row, or an incomplete row."""

    sequence_id: int
    span_id: str
    reason: str
    rule: str


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The rows of an attempt."""

    rows: Sequence[TokenRow]
    omissions: Sequence[RowOmission]
    triplets: int
    """The number of triplets of which the rows were made."""


def token_rows(triplets: Sequence[Triplet], *, merge_turns: bool, row: int | None = None) -> TokenRows:
    """Return the rows that `trajectories` makes of triplets, without limits of length.

    Args:
        triplets: the triplets of an attempt, of which the first `MOST_TRIPLETS` are read.
        merge_turns: whether the calls of a conversation become one row.
        row: the number of the row whose tokens are all returned; None for the first tokens of all rows.
    """
    read = triplets[:MOST_TRIPLETS]
    if merge_turns:
        # All rows of a batch are as long as the longest, so the number of triplets is limited by the size of the batch.
        longest = max((len(triplet.prompt["token_ids"]) + _length(triplet) for triplet in read), default=0)
        read = read[: max(1, _MOST_CELLS // max(2 * longest, 1))]
    rows: list[TokenRow] = []
    omissions: list[RowOmission] = []
    left = MOST_TOKENS
    for some in [read] if merge_turns else [[triplet] for triplet in read]:
        width = max((len(triplet.prompt["token_ids"]) for triplet in some), default=0) or 1
        longest = max((width + _length(triplet) for triplet in some), default=1) if merge_turns else _length(some[0])
        batch = trajectories(some, 0, width, longest or 1, merge_turns=merge_turns)
        for index in range(len(batch)):
            number = len(rows) + 1
            most = left if row is None else MOST_OF_ONE_ROW if row == number else 0
            rows.append(_row(batch, index, number, some, width, most))
            left -= len(rows[-1].tokens)
        omissions += [
            RowOmission(call["sequence_id"], call["span_ids"][0], omission.reason, ROW_RULES[omission.reason])
            for omission in batch.left_out
            for call in [some[omission.triplet].metadata]
        ]
    return TokenRows(rows, omissions, len(read))


def _length(triplet: Triplet) -> int:
    return len(triplet.response["token_ids"])


def _row(
    batch: Trajectories, index: int, number: int, triplets: Sequence[Triplet], prompt_width: int, most: int
) -> TokenRow:
    sources = [triplets[source] for source in batch.rows[index]]
    count = sum(batch.attention_mask[index][prompt_width:])
    mask = batch.response_mask[index][:count]
    recorded = _recorded(sources)
    has_log_probs = batch.has_log_probs[index]
    cells: list[TokenCell] = []
    for place in range(min(count, max(most, 0))):
        text, log_prob = next(recorded, (None, None)) if mask[place] else (None, None)
        cells.append(TokenCell(batch.responses[index][place], text, log_prob, bool(mask[place])))
    trained = sum(mask)
    log_probs = sum(batch.old_log_probs[index][:count])
    versions = (triplet.metadata["model_version"] for triplet in sources)
    return TokenRow(
        number,
        [triplet.metadata["sequence_id"] for triplet in sources],
        [triplet.metadata["span_ids"][0] for triplet in sources],
        sum(batch.attention_mask[index][:prompt_width]),
        trained,
        count - trained,
        sum(batch.token_level_scores[index]),
        log_probs / trained if has_log_probs and trained else None,
        list(dict.fromkeys(version for version in versions if version is not None)),
        cells,
        count,
    )


def _recorded(triplets: Sequence[Triplet]) -> Iterator[tuple[str | None, float | None]]:
    """Yield the text and the log probability of each response token of the triplets, as far as they were recorded."""
    for triplet in triplets:
        entries: Any = triplet.response.get("logprobs")
        count = _length(triplet)
        if not isinstance(entries, (list, tuple)) or len(cast("Sequence[Any]", entries)) != count:
            yield from ((None, None) for _ in range(count))
            continue
        for entry in cast("Sequence[Any]", entries):
            fields = cast("Mapping[str, Any]", entry) if isinstance(entry, Mapping) else {"logprob": entry}
            text, log_prob = fields.get("token"), cast("Any", fields.get("logprob"))
            number = float(log_prob) if type(log_prob) in {int, float} else None
            yield text if isinstance(text, str) else None, number
