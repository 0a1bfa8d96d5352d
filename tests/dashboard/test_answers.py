"""Answers of the dashboard besides pages: their JSON twins, files, errors and redirects."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import pytest

from store.dashboard import rendering
from store.dashboard.site import NAVIGATION
from tests.dashboard.filled import page_paths
from tests.server.api import Api

HTML = {"Accept": "text/html"}
STATIC = Path(rendering.__file__).parent / "static"
VENDORED = (STATIC, Path(__file__).parent / "vendor")


async def test_only_browsers_are_sent_from_the_root_to_the_dashboard(api: Api) -> None:
    sent = await api.get("//", headers=HTML, allow_redirects=False)
    assert (sent.status, sent.headers["location"]) == (303, "/ui/")
    for headers in ({}, {"Accept": "application/json"}):
        assert (await api.get("//", headers=headers, allow_redirects=False)).status == 404
    assert (await api.get("//ui", headers=HTML, allow_redirects=False)).headers["location"] == "/ui/"


async def test_missing_page_is_answered_in_the_format_of_the_request(api: Api) -> None:
    page = await api.get("//ui/nothing", headers=HTML)
    assert (page.status, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "There is no such page" in page.body.decode()
    assert (await api.get("//ui/nothing.json")).detail == "There is no such page"
    wrong = await api.get("//ui/rollouts.json?limit=many")
    assert wrong.status == 422
    assert "is not an integer" in str(wrong.detail)
    answer = await api.get("//ui/rollouts?limit=%3Cb%3Emany", headers=HTML)
    assert answer.status == 422
    assert "&lt;b&gt;many" in answer.body.decode()


async def test_head_requests_are_answered_without_a_body(api: Api) -> None:
    for path in (
        "//ui/rollouts",
        "//ui/rollouts.json",
        f"/{rendering.static_url('app.css')}",
        "//ui/nothing",
        "//ui/live",
    ):
        asked, body = await api.send("HEAD", path), None if "live" in path else await api.get(path)
        assert asked.body == b""
        assert body is None or (asked.status, asked.headers["content-type"]) == (
            body.status,
            body.headers["content-type"],
        )


async def test_a_file_may_be_kept_for_ever_under_its_version_alone(api: Api) -> None:
    for path in STATIC.glob("*.js"):
        answer = await api.get(f"/{rendering.static_url(path.name)}", headers={"Accept-Encoding": "identity"})
        assert (answer.status, answer.body) == (200, path.read_bytes())
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    older = await api.get("//ui/static/0123456789ab/app.js")
    assert (older.status, older.headers["cache-control"]) == (200, "no-cache")


async def test_files_and_pages_are_compressed_for_clients_that_accept_gzip(api: Api) -> None:
    for path in (rendering.static_url("app.css"), "/ui/rollouts"):
        async with api.session.get(api.url + path, headers={"Accept-Encoding": "gzip"}) as answer:
            assert answer.headers["content-encoding"] == "gzip"
            assert "Accept-Encoding" in answer.headers["vary"]
            assert len(await answer.read()) > int(answer.headers["content-length"])
        async with api.session.get(api.url + path, headers={"Accept-Encoding": "identity"}) as answer:
            assert "content-encoding" not in answer.headers


async def test_nothing_but_the_files_of_pages_is_given_away(api: Api, subtests: pytest.Subtests) -> None:
    names = ("nothing.js", "..%2Fsite.py", "%2e%2e/site.py", "VENDORED.md", "app.js%00", "__init__.py", "app.js/")
    for name in names:
        with subtests.test(name=name):
            assert (await api.get(f"//ui/static/{rendering.version()}/{name}")).status == 404


async def test_no_page_appears_in_the_description_of_the_api(api: Api) -> None:
    described = (await api.get("//openapi.json")).json["paths"]
    assert described
    assert [path for path in described if path.startswith("/ui")] == []


async def test_every_page_has_a_twin_and_says_where_also_in_an_empty_store(api: Api, subtests: pytest.Subtests) -> None:
    for path in page_paths():
        if "{" in path or path == "/ui/compare":
            continue
        with subtests.test(path=path):
            page = await api.get(f"/{path}", headers=HTML)
            assert page.status == 200
            if not page.headers["content-type"].startswith("text/html"):
                continue
            (twin,) = re.findall(r'href="([^"]+)" download>This page as JSON', page.body.decode())
            assert isinstance((await api.get(f"/{twin}")).ok(), dict)


async def test_whatever_is_found_in_the_navigation_is_there(api: Api) -> None:
    paths = set(page_paths())
    segments = [segment for _, entries in NAVIGATION for segment, _ in entries]
    assert {"", "rollouts", "failures", "rewards", "runs", "admin"} <= set(segments)
    assert [segment for segment in segments if f"/ui/{segment}" not in paths] == []


@pytest.mark.parametrize("directory", VENDORED, ids=lambda path: path.name)
def test_the_files_of_others_are_as_they_were_published_and_their_licences_are_kept(directory: Path) -> None:
    manifest = (directory / "VENDORED.md").read_text()
    told = dict(re.findall(r"^\| `([\w.]+)` \|.*\| `([0-9a-f]{64})` \|$", manifest, re.MULTILINE))
    assert told == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.glob("*.min.*")}
    licences = manifest + "".join(path.read_text() for path in directory.glob("*.LICENSE.txt"))
    for licence in set(re.findall(r"\| (0BSD|MIT|MPL-2\.0) \|", manifest)):
        begins = {
            "0BSD": "Permission to use, copy, modify, and/or distribute this software for",
            "MIT": "Permission is hereby granted, free of charge, to any person obtaining a copy",
            "MPL-2.0": "Mozilla Public License, version 2.0",
        }[licence]
        assert begins in licences


def test_a_page_is_small() -> None:
    """Of the 150 KB that any page may take without its data, what all pages have takes a fifth."""
    shared = [path for path in STATIC.iterdir() if path.name in {"app.css", "htmx.min.js"} or path.suffix == ".js"]
    packed = sum(len(gzip.compress(path.read_bytes(), 9)) for path in shared)
    assert packed < 110_000


def test_templates_with_attributes_of_htmx_load_it() -> None:
    for path in (STATIC.parent / "templates").glob("*.html"):
        text = path.read_text()
        assert (" hx-" in text) == ('include "htmx.html"' in text), path.name
