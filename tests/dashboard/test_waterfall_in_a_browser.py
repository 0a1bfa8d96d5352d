"""The waterfall in a browser: mouse and keyboard, unusual and long traces, and live spans."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from store.models import AttemptedRollout, Span
from tests.dashboard.browsing import BROWSER, Site
from tests.dashboard.traces import START, a_span, answered, rewarded, span_id
from tests.torture import rounds

pytestmark = BROWSER

LONG = rounds(50_000, few=5_000)
"""The spans of a long trace: several times as many as are drawn, on several pages of spans."""
MOST_DRAWN = 1_000


in_memory = pytest.mark.parametrize("site_url", ["memory://"])
"""For what a page does by itself, the same on every database."""


async def a_tree(site: Site) -> AttemptedRollout:
    """Return a rollout with spans as parents and children, and some that lie."""
    rollout = await site.store.start_rollout("task")
    await site.store.add_many_spans(
        [
            a_span(rollout, 1, "agent", end_time=START + 20),
            a_span(rollout, 2, "plan", 1),
            a_span(rollout, 3, "chat", 2, attributes=answered("Who?", "Nobody.")),
            a_span(rollout, 4, "search", 1, status="ERROR"),
            a_span(rollout, 5, "agentlightning.annotation", 1, attributes=rewarded(0.5)),
            a_span(rollout, 6, "orphan", 999),
            a_span(rollout, 7, "circle a", 8),
            a_span(rollout, 8, "circle b", 7),
            a_span(rollout, 9, "itself", 9),
            a_span(rollout, 10, "timeless", 1, start_time=None, end_time=None),
            a_span(rollout, 11, "backwards", 1, end_time=START),
            a_span(rollout, 12, "endless", 1, end_time=None),
        ]
    )
    return rollout


def path(rollout: AttemptedRollout, query: str = "") -> str:
    return f"rollouts/{rollout.rollout_id}/waterfall{query}"


async def rows(page: Page) -> list[str]:
    """Return the names that are drawn, from top to bottom, two blanks for each level below the first."""
    texts = await page.locator(".wf-row:visible").evaluate_all(
        """(rows) => rows.map((row) => [
            Number(row.getAttribute("aria-rowindex")),
            "  ".repeat(row.getAttribute("aria-level") - 1) + row.querySelector(".wf-text").textContent,
        ]).sort(([a], [b]) => a - b).map(([, name]) => name)"""
    )
    return list(texts)


TREE = [
    "agent",
    "  plan",
    "    chat",
    "  search",
    "  agentlightning.annotation",
    "  backwards",
    "  endless",
    "  timeless",
    "orphan",
    "itself",
    "circle a",
    "  circle b",
]


async def test_spans_form_a_tree_whatever_their_parents_and_times_say(page: Page, site: Site) -> None:
    await page.goto(site.at(path(await a_tree(site))))
    await expect(page.locator(".wf-sum")).to_contain_text("12 spans · 1 failed")
    assert await rows(page) == TREE
    await expect(page.locator(".wf-plain")).to_have_count(0)


@in_memory
async def test_keys_move_collapse_and_open(page: Page, site: Site) -> None:
    await page.goto(site.at(path(await a_tree(site))))
    await expect(page.locator(".wf-sum")).to_contain_text("12 spans")
    await page.locator(".wf-scroll").focus()
    for key in ("ArrowDown", "j", "ArrowLeft"):
        await page.keyboard.press(key)
    assert await rows(page) == [row for row in TREE if row != "    chat"]
    await page.keyboard.press("ArrowRight")
    assert await rows(page) == TREE
    await page.keyboard.press("ArrowRight")
    await expect(page.locator(".wf-row.chosen .wf-text")).to_have_text("chat")
    await page.keyboard.press("Enter")
    await expect(page.locator(".wf-panel")).to_contain_text("Nobody.")
    assert f"span={span_id(3)}" in page.url
    await page.keyboard.press("ArrowLeft")
    await expect(page.locator(".wf-row.chosen .wf-text")).to_have_text("plan")
    await expect(page.locator(".wf-panel h1")).to_have_text("plan")
    await page.keyboard.press("Escape")
    await expect(page.locator(".wf-panel")).to_be_hidden()


@in_memory
async def test_an_address_names_a_span_and_a_filter(page: Page, site: Site) -> None:
    rollout = await a_tree(site)
    await page.goto(site.at(path(rollout, f"?span={span_id(3)}")))
    await expect(page.locator(".wf-panel")).to_contain_text("Nobody.")
    await page.goto(site.at(path(rollout, "?q=CHAT")))
    await expect(page.locator(".wf-row:visible")).to_have_count(3)
    assert await rows(page) == TREE[:3]
    await page.get_by_label("Name contains").fill("")
    await page.get_by_label("Errors only").check()
    await expect(page.locator(".wf-row:visible")).to_have_count(2)
    assert await rows(page) == ["agent", "  search"]
    assert "errors=1" in page.url
    assert "q=" not in page.url


async def a_day(site: Site) -> AttemptedRollout:
    """Return a rollout whose agent calls models at once and, after an hour, a tool that fails."""
    rollout = await site.store.start_rollout("task")
    model = answered("Who?", "Nobody.")
    await site.store.add_many_spans(
        [
            a_span(rollout, 1, "chat small", 4, start_time=START, end_time=START + 10, attributes=model),
            a_span(rollout, 2, "chat large", 4, start_time=START, end_time=START + 40, attributes=model),
            a_span(rollout, 3, "execute_tool bash", 4, start_time=START + 3640, end_time=START + 3700, status="ERROR"),
            a_span(rollout, 4, "invoke_agent solver", start_time=START, end_time=START + 3700),
        ]
    )
    return rollout


async def bar_width(page: Page, name: str) -> float:
    """Return the width of the bar of a span as a share of the axis."""
    bar = page.locator(".wf-row", has_text=name).locator(".wf-bar")
    return float(await bar.evaluate("(bar) => bar.offsetWidth / bar.parentElement.clientWidth"))


@in_memory
async def test_idle_hour_takes_little_room_until_it_is_shown_in_full(page: Page, site: Site) -> None:
    rollout = await a_day(site)
    await page.goto(site.at(path(rollout)))
    await expect(page.locator(".wf-gap-length")).to_have_text("1 h")
    assert await bar_width(page, "chat large") > 0.3
    assert await bar_width(page, "bash") > 0.5
    await page.locator(".wf-row", has_text="bash").click()
    await page.get_by_role("button", name="Zoom to span").click()
    assert await bar_width(page, "bash") > 0.8
    await page.get_by_label("Compress gaps").uncheck()
    await expect(page.locator(".wf-gap")).to_have_count(0)
    # The view stays on the span, also after a reload.
    assert await bar_width(page, "bash") > 0.8
    await page.wait_for_url(re.compile(r"[?&]zoom=36[34]\d.*-3[67]\d\d"))
    await page.reload()
    await expect(page.locator(".wf-panel")).to_be_visible()
    assert await bar_width(page, "bash") > 0.8
    await page.get_by_role("button", name="Show all").click()
    assert await bar_width(page, "bash") < 0.05
    assert "gaps=1" in page.url
    await expect(page.locator(".wf-panel")).to_be_visible()
    await page.get_by_label("Compress gaps").focus()
    await page.keyboard.press("Escape")
    await expect(page.locator(".wf-panel")).to_be_hidden()


@in_memory
async def test_kinds_have_times_and_filter_and_the_critical_path_leaves_out_the_faster_call(
    page: Page, site: Site
) -> None:
    await page.goto(site.at(path(await a_day(site))))
    await expect(page.locator(".wf-legend")).to_contain_text("idle 1 h")
    times = await page.locator(".wf-times tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent.trim()))"
    )
    assert times == [
        ["agent", "1", "0", "1 h 1 min", "100 %", "1 h 1 min", "1 h 1 min"],
        ["model", "2", "0", "40 s", "1 %", "50 s", "40 s"],
        ["tool", "1", "1", "1 min", "2 %", "1 min", "1 min"],
        ["idle", "", "", "1 h", "97 %", "", ""],
    ]
    assert await rows(page) == ["invoke_agent solver", "  chat large", "  chat small", "  execute_tool bash"]
    await page.get_by_label("Critical path").check()
    await expect(page.locator(".wf-critical .wf-text")).to_have_text(
        ["invoke_agent solver", "chat large", "execute_tool bash"]
    )
    await page.locator(".wf-legend [data-kind=tool]").click()
    await expect(page.locator(".wf-row:visible")).to_have_count(2)
    assert await rows(page) == ["invoke_agent solver", "  execute_tool bash"]
    assert "kind=tool" in page.url


async def test_new_spans_appear_and_the_selection_stays(page: Page, site: Site) -> None:
    rollout = await a_tree(site)
    await page.goto(site.at(path(rollout)))
    await expect(page.locator("#live-state")).to_have_text("live")
    # Until the rows are drawn there is a table, whose links lead away.
    await expect(page.locator(".wf-row", has_text="circle a")).to_be_visible()
    await page.get_by_text("chat", exact=True).click()
    await page.locator(".wf-row", has_text="circle a").locator(".wf-toggle").click()
    await site.store.add_many_spans([a_span(rollout, 13, "late", 1)])
    await expect(page.locator(".wf-sum")).to_contain_text("13 spans")
    assert await rows(page) == [*TREE[:7], "  late", *TREE[7:11]]
    await expect(page.locator(".wf-row.chosen .wf-text")).to_have_text("chat")
    await expect(page.locator(".wf-panel")).to_contain_text("Nobody.")


async def test_the_slider_takes_spans_away_and_brings_them_back(page: Page, site: Site) -> None:
    rollout = await site.store.start_rollout("task")
    await site.store.add_many_spans([a_span(rollout, 1, "first")])
    at = (await site.store.log.history(rollout.rollout_id))[-1].number
    await site.store.add_many_spans([a_span(rollout, 2, "second")])
    await page.goto(site.at(path(rollout)))
    await expect(page.locator(".wf-row:visible")).to_have_count(2)
    await page.locator("#slider input[type=range]").fill(str(at))
    await expect(page.locator(".wf-row:visible")).to_have_count(1)
    assert await rows(page) == ["first"]
    await page.locator("#slider input[type=range]").fill(str(at + 1))
    await expect(page.locator(".wf-row:visible")).to_have_count(2)


def _like(span: Span, number: int) -> Span:
    """Return a span of a tree that is both wide and deep."""
    parent = None if number == 1 else span_id(number // 4 + 1 if number % 3 else 1)
    start = START + number
    changed = {"sequence_id": number, "span_id": span_id(number), "parent_id": parent, "name": f"step {number}"}
    return span.model_copy(update=changed | {"start_time": start, "end_time": start + 1})


@in_memory
@pytest.mark.torture
async def test_of_many_spans_few_are_drawn_and_each_can_be_reached(page: Page, site: Site) -> None:
    rollout = await site.store.start_rollout("task")
    one = a_span(rollout, 1)
    for first in range(1, LONG, 1_000):
        await site.store.add_many_spans([_like(one, number) for number in range(first, first + 1_000)])
    await page.goto(site.at(path(rollout)))
    await expect(page.locator(".wf-sum")).to_contain_text(f"{LONG:,} spans", timeout=60_000)
    scroller, drawn = page.locator(".wf-scroll"), page.locator(".wf-row")
    assert await scroller.get_attribute("aria-rowcount") == str(LONG + 1)
    height = await scroller.evaluate("(element) => element.scrollHeight")
    assert height > LONG * 20
    for share in (0, 0.1, 0.37, 0.5, 0.999, 1, 0.2):
        await scroller.evaluate("(element, top) => { element.scrollTop = top; }", share * height)
        await page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
        assert 0 < await drawn.count() <= MOST_DRAWN
        # What is in sight is drawn: the element in the middle is a row.
        assert await scroller.evaluate(
            """(element) => {
                const box = element.getBoundingClientRect();
                return document.elementFromPoint(box.left + 40, box.top + box.height / 2).closest(".wf-row") !== null;
            }"""
        )
    await scroller.focus()
    await page.keyboard.press("End")
    await expect(drawn.locator("visible=true").last).to_be_attached()
    await expect(page.locator(".wf-row.chosen")).to_have_attribute("aria-rowindex", str(LONG + 1))
    await page.goto(site.at(path(rollout, f"?span={span_id(LONG)}")))
    await expect(page.locator(".wf-row.chosen .wf-text")).to_have_text(f"step {LONG}", timeout=60_000)
    await expect(page.locator(".wf-row.chosen")).to_be_in_viewport()
    assert await drawn.count() <= MOST_DRAWN
