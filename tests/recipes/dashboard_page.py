"""A dashboard page: the number of rollouts of each status."""

from tests.recipes.scratch import Recipe, Scratch

_PAGE = '''"""Counts: how many rollouts, attempts and spans there are."""

from __future__ import annotations

from store.dashboard.page import PageContent, Pages
from store.dashboard.request import PageRequest

pages = Pages()


@pages.get("/ui/counts")
async def counts(request: PageRequest) -> PageContent:
    """Show the counts of the store."""
    return PageContent("counts.html", {"counts": dict(await request.store.statistics())}, "Counts")
'''
_TEMPLATE = """{% extends "base.html" %}
{% block main %}
<div class="page-head"><h1>Counts</h1></div>
<section class="sheet" aria-label="Counts">
  <dl>{% for name, value in counts.items() %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
</section>
{% endblock %}
"""


def _apply(scratch: Scratch) -> None:
    scratch.create("store/dashboard/pages/counts.py", _PAGE)
    scratch.create("store/dashboard/templates/counts.html", _TEMPLATE)
    site = "store/dashboard/site.py"
    scratch.replace(site, "    cost,\n    effects,\n", "    cost,\n    counts,\n    effects,\n")
    scratch.replace(site, "    effects,\n    groups,\n", "    effects,\n    counts,\n    groups,\n")
    scratch.replace(site, '("failures", "Failures"))', '("failures", "Failures"), ("counts", "Counts"))')


RECIPE = Recipe(
    "dashboard page",
    3,
    _apply,
    '''"""The page is served with its JSON twin, and the navigation leads to it."""

import httpx

from store import open_store
from store.server import StoreServer


async def test_the_page_its_twin_and_the_way_to_it(tmp_path):
    async with await open_store(f"sqlite:///{tmp_path / 'run.db'}") as store, StoreServer(store) as server:
        await store.enqueue_rollout("task")
        async with httpx.AsyncClient(base_url=server.endpoint) as client:
            page = await client.get("/ui/counts")
            assert page.status_code == 200
            assert "<h1>Counts</h1>" in page.text
            assert (await client.get("/ui/counts.json")).json()["counts"]["total_rollouts"] == 1
            assert "/ui/counts" in (await client.get("/ui/workers")).text
''',
)
