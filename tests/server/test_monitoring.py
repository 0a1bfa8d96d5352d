"""Input of Prometheus is well-formed, and the documented rules and dashboard use existing metrics."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from store.interface.store import Store
from store.server.partitions import Partitions
from store.server.quotas import Quota, Quotas
from tests.server.stream_clients import LOG, serving
from tests.server.test_metrics import OF_MANY, reward

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
# Prometheus itself makes this one.
OF_PROMETHEUS = "up"


def promtool(*arguments: str, stdin: str | None = None) -> str:
    """Run promtool and return what it prints; without it the test is skipped, or fails where it is required."""
    program = shutil.which("promtool")
    if program is None:
        told = "no promtool on the path: apt-get install prometheus"
        if os.environ.get("ROLLBOOK_REQUIRE_PROMTOOL"):
            pytest.fail(told)
        pytest.skip(told)
    done = subprocess.run([program, *arguments], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


async def scraped(store: Store) -> str:
    """Return the metrics of a server that has done something of everything."""
    partitions = Partitions(store, quotas=Quotas(Quota(events=10**6, bytes=10**12, calls=10**6)))
    async with serving(partitions) as client, client.events(LOG) as stream:
        await stream.frame()
        await store.update_worker("worker-1", {})
        await reward(store, 0.5)
        await store.log.verify()
        async with client.session.get(f"{client.url}/v1/agl/health") as answer:
            assert answer.status == 200
        async with client.session.get(f"{client.url}/metrics") as answer:
            return await answer.text()


def names(text: str) -> set[str]:
    """Return the names of the series in a scrape."""
    return set(re.findall(r"^(\w+)[{ ]", text, re.MULTILINE)) | {OF_PROMETHEUS, OF_MANY}


def used(expression: str) -> set[str]:
    """Return the names of the series in an expression."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\"[^\"]*\"|\b(by|on|without)\s*\([^)]*\)", "", expression)
    return {name for name in re.findall(r"\b[a-z]\w*\b(?!\s*\()", bare) if "_" in name or name == OF_PROMETHEUS}


@pytest.mark.usefixtures("patient_scrapes")
async def test_promtool_accepts_the_metrics(store: Store) -> None:
    assert promtool("check", "metrics", stdin=await scraped(store)) == ""


def test_promtool_accepts_the_alert_rules_and_their_tests_pass() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(MONITORING / "alerts.yaml"))
    assert "SUCCESS" in promtool("test", "rules", str(MONITORING / "alerts_test.yaml"))
    assert "SUCCESS" in promtool("test", "rules", str(MONITORING / "alerts_days_test.yaml"))


@pytest.mark.usefixtures("patient_scrapes")
async def test_the_alerts_and_the_dashboard_use_metrics_that_there_are(store: Store) -> None:
    there = names(await scraped(store))
    dashboard: Any = json.loads((MONITORING / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += re.findall(r"label_values\((.*),", (MONITORING / "grafana.json").read_text())
    rules = (MONITORING / "alerts.yaml").read_text()
    expressions += re.findall(r"expr: (.*(?:\n {10}.*)*)", rules)
    assert len(expressions) == len(dashboard["panels"]) + 4 + rules.count("- alert:")
    series_of = {expression: used(expression) for expression in expressions}
    assert [expression for expression, series in series_of.items() if not series] == []
    assert {expression: series - there for expression, series in series_of.items() if series - there} == {}


def test_panels_and_their_places_are_distinct() -> None:
    panels: Any = json.loads((MONITORING / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(panels)
