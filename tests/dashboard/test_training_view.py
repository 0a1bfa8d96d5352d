"""The training view equals the result of the trainer's adapter, with an explanation of each reason."""

from __future__ import annotations

import inspect
import re
from typing import Any

import orjson
import pytest

from store.adapters import intake, records, rewards, rows, selection
from store.adapters.triplets import TracerTraceToTriplet
from store.dashboard.views.token_rows import MOST_TOKENS, ROW_RULES
from store.dashboard.views.training import RULES, training_view
from store.models import Span
from store.sql.store import SQLStore
from tests.dashboard.page_helpers import ON_BOTH, Read
from tests.server.api import Api


def _call(number: int, *, tokens: bool = True, response: str | None = None) -> Span:
    said: dict[str, Any] = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "?"}
    if tokens:
        said |= {"prompt_token_ids": [1, 2, 3], "response_token_ids": [4, 5]}
    return _span(number, "openai.chat.completion", said | {"gen_ai.response.id": response or f"resp-{number}"})


def _span(number: float, name: str, attributes: dict[str, Any]) -> Span:
    return Span.from_attributes(
        attributes=attributes,
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=int(number),
        span_id=f"{int(number * 4):016x}",
        name=name,
        start_time=100.0 + number,
        end_time=100.5 + number,
    )


def _reward(number: int, value: float) -> Span:
    return _span(number, "agentlightning.annotation", {"agentlightning.reward.0.value": value})


def test_view_equals_the_report_of_the_adapter() -> None:
    of_proxy = {"gen_ai.response.id": "resp-1", "agl.call.backend": "vllm"}
    spans = [_call(1), _span(1.25, "openai.chat.completion", of_proxy), _reward(3, 0.5), _reward(4, 0.25)]
    report, view = TracerTraceToTriplet().adapt_report(spans), training_view(spans)
    assert [call.span_ids for call in view.kept] == [triplet.metadata["span_ids"] for triplet in report.triplets]
    assert [call.reward for call in view.kept] == [triplet.reward for triplet in report.triplets]
    assert [(span.span_id, span.reason) for span in view.dropped] == [omission[:2] for omission in report.dropped]
    assert [(loss.span_id, loss.value, loss.reason) for loss in view.lost] == list(report.lost_rewards)
    assert (view.kept[0].prompt_tokens, view.kept[0].response_tokens) == (3, 2)
    assert view.dropped[0].name == "openai.chat.completion"


def test_every_reason_of_the_adapters_has_its_sentence() -> None:
    told = set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", f"{records.Dropped.__doc__} {records.Lost.__doc__}")) - {"detail"}
    assert len(told) >= 12
    assert told == set(RULES)
    sources = "".join(map(inspect.getsource, (intake, rewards, selection)))
    assert all(f'"{reason}"' in sources for reason in RULES)


@pytest.mark.parametrize(
    "spans, said, is_good",
    [
        ([], "This attempt recorded no spans", False),
        ([_span(1, "index", {})], "No span is a call to a model", False),
        ([_call(1), _reward(2, 1.0)], "1 triplet from 1 of 1 recorded call.", True),
        ([_call(1, tokens=False), _reward(2, 1.0)], "1 has no token ids", False),
        ([_call(1)], "None has a reward: none was recorded", False),
    ],
    ids=["nothing", "no calls", "good", "no tokens", "no reward"],
)
def test_verdict_names_the_missing_data(spans: list[Span], said: str, *, is_good: bool) -> None:
    view = training_view(spans)
    assert said in view.verdict
    assert view.is_good is is_good


def test_the_verdict_counts_spans_and_triplets() -> None:
    choices = {"prompt_token_ids": [1], "response_token_ids": [2], "gen_ai.completion.1.token_ids": [3]}
    view = training_view([_span(1, "openai.chat.completion", choices | {"gen_ai.completion.0.role": "assistant"})])
    assert "2 triplets from 1 of 1 recorded call. Some calls have several choices." in view.verdict


def test_the_proxys_adapter_may_be_asked_instead() -> None:
    view = training_view([_call(1, tokens=False), _call(2), _reward(3, 1.0)], "proxy")
    assert [call.sequence_id for call in view.kept] == [2]
    assert view.kept[0].reward == 1.0


def _with_tokens(number: int, prompt: list[int], response: list[int], **attributes: Any) -> Span:
    tokens = {"prompt_token_ids": prompt, "response_token_ids": response, "gen_ai.response.id": f"resp-{number}"}
    return _span(number, "openai.chat.completion", tokens | attributes)


def test_rows_have_the_text_the_mask_and_the_log_probability_of_each_token() -> None:
    entries = orjson.dumps([{"token": "<b>", "logprob": -0.1}, {"token": "x", "logprob": -4.0}]).decode()
    version = {"agl.call.model_version": "step-3", "logprobs.content": entries}
    spans = [
        _with_tokens(1, [1, 2], [3, 4], **version),
        _with_tokens(2, [1, 2, 3, 4, 9], [5]),
        _reward(3, 0.5),
    ]
    separate = training_view(spans).tokens
    assert separate is not None
    assert [(omission.sequence_id, omission.reason) for omission in separate.omissions] == [
        (1, "no_reward"),
        (2, "no_log_probs"),
    ]
    assert [(row.sequence_ids, row.prompt_tokens, row.trained_tokens) for row in separate.rows] == [([2], 5, 1)]
    assert separate.rows[0].mean_log_prob is None
    merged = training_view(spans, merge_turns=True).tokens
    assert merged is not None
    (row,) = merged.rows
    assert [(token.id, token.text, token.log_prob, token.is_trained) for token in row.tokens] == [
        (3, "<b>", -0.1, True),
        (4, "x", -4.0, True),
        (9, None, None, False),
        (5, None, None, True),
    ]
    assert [token.certainty for token in row.tokens] == ["likely", "unlikely", "unknown", "unknown"]
    assert (row.score, row.masked_tokens, row.model_versions) == (0.5, 1, ["step-3"])


def test_page_has_a_part_of_the_tokens_and_one_row_in_full_on_request() -> None:
    spans = [span for number in range(3) for span in _rewarded(number)]
    some = training_view(spans).tokens
    assert some is not None
    assert [len(row.tokens) for row in some.rows] == [1_000, MOST_TOKENS - 1_000, 0]
    chosen = training_view(spans, row=3).tokens
    assert chosen is not None
    assert [len(row.tokens) for row in chosen.rows] == [0, 0, 1_000]


def _rewarded(number: int) -> list[Span]:
    call = _with_tokens(2 * number + 1, [1], list(range(1_000)))
    return [call, _reward(2 * number + 2, 1.0)]


def test_every_reason_of_rows_has_its_sentence() -> None:
    reasons = set(re.findall(r'"((?:no|prompt|response)_[a-z_]+)"', inspect.getsource(rows)))
    assert set(ROW_RULES) <= reasons
    assert reasons - set(ROW_RULES) <= {"prompt_too_long", "prompt_truncated", "response_truncated", "response_mask"}


@ON_BOTH
async def test_sums_of_a_step_count_rows_rules_and_groups_with_equal_rewards(store: SQLStore, api: Api) -> None:
    for group, reward, tokens in (("a", 1.0, True), ("a", 1.0, False), ("b", 1.0, True), ("b", 0.5, True)):
        begun = await store.start_rollout(1, metadata={"rollbook.group": group, "rollbook.step": 3})
        ids = {"rollout_id": begun.rollout_id, "attempt_id": begun.attempt.attempt_id}
        spans = [_call(1, tokens=tokens), _reward(2, reward), _reward(3, reward)]
        await store.add_many_spans([span.model_copy(update=ids) for span in spans])
    await store.enqueue_rollout(2, metadata={"rollbook.step": 3})
    await store.enqueue_rollout(2, metadata={"rollbook.step": 4})
    twin = (await api.get("//ui/training.json?step=3")).ok()
    sums = twin["sums"]
    assert (twin["total"], len(sums["rollouts"]), sums["triplets"], sums["rows"]) == (5, 5, 4, 3)
    assert sums["trained_tokens"] == 3 * 2
    assert {(rule["subject"], rule["reason"]): (rule["count"], rule["rollouts"]) for rule in sums["rules"]} == {
        ("reward", "no_call_before"): (4, 4),
        ("row", "no_log_probs"): (3, 3),
        ("row", "no_prompt_tokens"): (1, 1),
    }
    assert (sums["groups"], sums["equal_groups"], sums["without_calls"]) == (2, ["a"], 0)
    page = Read((await api.get("//ui/training?group=b")).body)
    assert "2 of 2 rollouts read: 2 triplets, 2 rows, 4 trained tokens. 0 of 1 groups have equal rewards." in page.text
    rollout_id = sums["rollouts"][-1]["rollout_id"]
    assert "/ui/training?step=3" in Read((await api.get(f"//ui/rollouts/{rollout_id}/training")).body).links
