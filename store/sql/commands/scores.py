"""The command that records scores, made from arguments that are checked and encoded."""

from __future__ import annotations

from store.domain.events import RewardScored
from store.domain.scores import RecordScores, ScoreItem
from store.models.calls import RecordScoresCall
from store.models.scores import NewScore
from store.validation import scores
from store.validation.json_limits import body_of, check_call


def record(call: RecordScoresCall) -> RecordScores:
    """Return the command that records scores.

    Raises:
        Invalid, TooLarge: see `StoreAnnotations.record_scores`.
    """
    command = RecordScores(items=[_item(score) for score in scores.check(call.scores)])
    check_call(len(command.items), command.size, "scores")
    return command


def _item(score: NewScore) -> ScoreItem:
    fact = RewardScored(
        attempt_id=score.attempt_id,
        name=score.name,
        version=score.version,
        value=None if score.value is None else float(score.value),
        dimensions=[[name, float(value)] for name, value in score.dimensions.items()] or None,
        error=None if score.error is None else {"type": score.error.type, "message": score.error.message},
        code_sha256=score.code_sha256,
    )
    body = None if score.explanation is None else body_of({"explanation": score.explanation})
    return ScoreItem(score.rollout_id, fact, body)
