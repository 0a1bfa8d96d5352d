"""Saved views of pages: save, replace after a confirmation, delete, limits, roles and hostile names."""

from __future__ import annotations

from typing import Any

import pytest

from store.db.queries import saved_views
from store.interface.store import Store
from tests.dashboard.page_helpers import HOSTILE, ON_BOTH, Read
from tests.server.api import Answer, Api


async def send(api: Api, path: str = "views", **fields: Any) -> Answer:
    """Send a form of the dashboard."""
    headers = {"Origin": api.url, "Accept": "text/html"}
    form = {"page": "rollouts", **fields}
    return await api.send("POST", f"//ui/{path}", data=form, headers=headers, allow_redirects=False)


async def views(api: Api) -> dict[str, str]:
    """Return the parameters of the views by name."""
    return {view["name"]: view["query"] for view in (await api.get("//ui/views.json")).ok()["views"]}


@ON_BOTH
async def test_view_is_saved_replaced_after_confirmation_and_deleted(api: Api, store: Store) -> None:
    before = (await store.log.verify()).chain_head
    query = "status=failed&sort=reward&col=reward&offset=50&after=7"
    answer = await send(api, name=" Failures é ", query=query)
    assert (answer.status, answer.headers["location"]) == (303, "/ui/rollouts?status=failed&sort=reward&col=reward")
    page = Read((await api.get("//ui/rollouts?status=failed&sort=reward&col=reward")).body)
    assert "/ui/rollouts?status=failed&sort=reward&col=reward" in page.links
    assert "Failures é" in page.text

    question = await send(api, name="Failures é", query="status=running")
    assert (question.status, await views(api)) == (409, {"Failures é": "status=failed&sort=reward&col=reward"})
    assert {"replace", "query"} <= set(Read(question.body).marked("name"))
    assert (await send(api, name="Failures é", query="status=running", replace=1)).status == 303
    assert await views(api) == {"Failures é": "status=running"}

    assert (await send(api, "views/delete", name="Failures é")).status == 303
    assert await views(api) == {}
    assert (await send(api, "views/delete", name="Failures é")).status == 404
    report = await store.log.verify()
    assert (report.differences, report.chain_head) == ([], before)


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"name": ""}, "must have 1 to 64 bytes"),
        ({"name": "é" * 33}, "must have 1 to 64 bytes"),
        ({"name": "a\nb"}, "control characters"),
        ({"name": "a", "page": "admin"}, "must be one of"),
        ({"name": "a", "query": f"q={'x' * 5000}"}, "more than 4,096 bytes"),
    ],
)
async def test_invalid_view_is_refused(api: Api, fields: dict[str, str], reason: str) -> None:
    answer = await send(api, **fields)
    assert answer.status == 422
    assert reason in Read(answer.body).text
    assert await views(api) == {}


async def test_hostile_name_and_parameters_are_text(api: Api) -> None:
    assert (await send(api, name=HOSTILE[:60], query=f"label={HOSTILE}&worker=%0d%0aSet-Cookie:a")).status == 303
    for path in ("rollouts", "views"):
        assert "<script>alert" not in (await api.get(f"//ui/{path}")).body.decode()
    assert "<script>alert" not in (await send(api, name=HOSTILE[:60], query="")).body.decode()


async def test_number_of_views_is_limited(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_views, "MOST_VIEWS", 1)
    assert (await send(api, name="a", query="status=failed")).status == 303
    assert (await send(api, name="b", query="status=failed")).status == 409
    assert (await send(api, name="a", query="status=running", replace=1)).status == 303
