"""The transcript in a browser: jumps, the outline, the find box, folds, images, and following a live attempt."""

from __future__ import annotations

from typing import Any, Final

import orjson
from playwright.async_api import Page, expect

from store.models import AttemptedRollout, Span
from tests.dashboard.browsing import BROWSER, Site
from tests.dashboard.filled import IMAGE

pytestmark = BROWSER

TURNS: Final = 60
EDITS: Final = 15
_TALL: Final = 12_300
"""40 % of the height, in pixels, of a transcript of 60 turns with each tool call printed twice."""
_HEIGHT: Final = """() => {
    const blocks = [...document.querySelectorAll(".transcript > .msg")];
    // Blocks out of sight have an estimated height.
    for (const block of blocks) block.style.contentVisibility = "visible";
    const height = document.querySelector(".transcript").offsetHeight;
    for (const block of blocks) block.style.contentVisibility = "";
    return height;
}"""
_VISIBLE_TOP = """(id) => {
    const target = document.getElementById(id).getBoundingClientRect().top;
    const bars = [...document.querySelectorAll(".top, .slider")].map((bar) => bar.getBoundingClientRect().bottom);
    return target - Math.max(...bars);
}"""


def _spans(rollout: AttemptedRollout, turns: int) -> list[Span]:
    """Return turns with one tool call each: an edit in every fourth, a failure in the last, an image in the prompt."""
    history: list[Any] = [
        {"role": "system", "parts": [{"type": "text", "content": "\n\n".join(f"Rule {n}" for n in range(12))}]},
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": "**Fix** `parse_date`."},
                {"type": "blob", "modality": "image", "mime_type": "image/png", "content": IMAGE.partition(",")[2]},
            ],
        },
    ]
    spans: list[Span] = []

    def record(name: str, attributes: dict[str, Any]) -> None:
        number = len(spans) + 1
        spans.append(
            Span.from_attributes(
                attributes=attributes,
                rollout_id=rollout.rollout_id,
                attempt_id=rollout.attempt.attempt_id,
                sequence_id=number,
                span_id=f"{number:016x}",
                name=name,
                start_time=100.0 + number,
                end_time=100.5 + number,
            )
        )

    for turn in range(turns):
        name, arguments, result = "bash", {"command": f"pytest -k case{turn}"}, "line\n" * 30 + f"needle {turn}"
        if turn % 4 == 2:
            name, arguments, result = "edit", {"path": "d.py", "old_str": "a\nb", "new_str": f"a\n{turn}"}, "ok"
        if turn == turns - 1:
            result = "boom\nexit code: 1"
        call = {"type": "tool_call", "id": f"c-{turn}", "name": name, "arguments": arguments}
        answer = {"role": "assistant", "parts": [{"type": "text", "content": f"Step {turn} of `it`."}, call]}
        messages = {"gen_ai.input.messages": orjson.dumps(history).decode()}
        record("chat", messages | {"gen_ai.output.messages": orjson.dumps([answer]).decode()})
        execution = {"gen_ai.tool.name": name, "gen_ai.tool.call.id": f"c-{turn}", "gen_ai.tool.call.result": result}
        record("execute_tool", execution | {"gen_ai.tool.call.arguments": orjson.dumps(arguments).decode()})
        response = {"type": "tool_call_response", "id": f"c-{turn}", "response": result}
        history += [answer, {"role": "tool", "parts": [response]}]
    record("graded", {"agentlightning.reward.0.value": 0.5})
    return spans


async def test_long_transcript_shows_each_tool_call_once_and_jumps_land_below_the_bars(page: Page, site: Site) -> None:
    rollout = await site.store.start_rollout({"issue": 1})
    await site.store.add_many_spans(_spans(rollout, TURNS))
    await site.store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    await page.set_viewport_size({"width": 1440, "height": 900})
    await page.goto(site.at(f"rollouts/{rollout.rollout_id}"))
    await expect(page.locator(".transcript .call")).to_have_count(TURNS)
    await expect(page.locator(".transcript .edit")).to_have_count(EDITS)
    assert await page.evaluate(_HEIGHT) < _TALL
    await page.wait_for_function("() => document.querySelector('.transcript img').naturalWidth === 1")
    assert "base64" not in await page.content()
    # The outline leads to each tool call, also into a fold; the keys lead to errors, rewards and turns.
    tool = f"entry-{8:016x}"
    await page.locator(f".outline a[href='#{tool}']").click()
    await expect(page.locator(f"#{tool}")).to_be_in_viewport()
    assert 0 <= await page.evaluate(_VISIBLE_TOP, tool) < 60
    await page.keyboard.press("t")
    turn = f"entry-{9:016x}"
    assert 0 <= await page.evaluate(_VISIBLE_TOP, turn) < 60
    await page.keyboard.press("e")
    await expect(page.locator(":focus")).to_have_attribute("id", f"entry-{2 * TURNS:016x}")
    await expect(page.locator(":focus .failure")).to_have_text("exit 1")
    await page.keyboard.press("r")
    await expect(page.locator(":focus h3")).to_have_text("Reward")
    # The find box keeps the blocks with a match and opens the folds around it.
    await page.locator("#find").fill("needle 5")
    await expect(page.locator(".find output")).to_have_text("7 in 7")
    await expect(page.locator(".transcript .msg:not(.is-miss)")).to_have_count(7)
    await page.keyboard.press("Escape")
    await expect(page.locator(".transcript .is-miss")).to_have_count(0)
    await page.locator("#outline-errors").check(force=True)
    await expect(page.locator(".outline li:visible")).to_have_count(1)
    # On a wide screen, the waterfall is beside the transcript, with the same selection.
    await expect(page.locator(".beside .wf")).to_have_count(0)
    await page.set_viewport_size({"width": 1600, "height": 900})
    await page.locator(".beside .wf-row:visible").nth(5).click()
    await expect(page.locator(".transcript .chosen")).to_be_in_viewport()
    span = (await page.locator(".transcript .chosen").get_attribute("id") or "").removeprefix("entry-")
    assert f"span={span}" in page.url
    await page.locator(f"#{tool} .call-head").click()
    await page.wait_for_url(f"**span={tool.removeprefix('entry-')}**")


async def test_live_transcript_is_followed_to_its_end_and_keeps_open_folds(page: Page, site: Site) -> None:
    rollout = await site.store.start_rollout({"issue": 1})
    spans = _spans(rollout, 12)
    await site.store.add_many_spans(spans[:20])
    await page.set_viewport_size({"width": 1440, "height": 700})
    await page.goto(site.at(f"rollouts/{rollout.rollout_id}"))
    await expect(page.locator("#live-state")).to_have_text("live")
    result = page.locator(f"#result-entry-{2:016x}")
    await result.locator("summary").click()
    await page.locator("[data-follow]").check()
    await site.store.add_many_spans(spans[20:])
    await expect(page.locator(".transcript .reward")).to_be_in_viewport()
    await expect(page.locator("[data-follow]")).to_be_checked()
    await expect(result).to_have_attribute("open", "")
    await site.store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    await expect(page.locator("[data-follow]")).to_have_count(0)
