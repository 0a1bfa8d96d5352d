"""A bundle shows rollouts in a browser without a server, and nothing in it needs or reveals anything else."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest
from playwright.async_api import Browser, expect

from store import Span, open_store
from store.dashboard.bundle import writing
from store.dashboard.bundle.static_html import StaticPage
from store.dashboard.bundle.writing import write_bundle
from store.errors import Conflict, Invalid
from store.models.queries import RolloutQuery
from store.sql.store import SQLStore
from tests.dashboard.browsing import watched
from tests.dashboard.filled import IMAGE
from tests.rescoring.conftest import add_rollouts

HOSTILE = '</pre><script>document.title = "owned"</script><img src="https://evil.example/x" onerror="alert(1)">'


async def fill(url: str) -> None:
    async with await open_store(url) as store:
        await add_rollouts(store, range(2))
        # Two attempts, and texts that try to become elements.
        hostile = await store.start_rollout({"task": HOSTILE}, metadata={"rollbook.group": HOSTILE})
        for _ in range(2):
            attempt = await store.get_latest_attempt(hostile.rollout_id)
            assert attempt is not None
            ids: dict[str, Any] = {"rollout_id": hostile.rollout_id, "attempt_id": attempt.attempt_id}
            await store.add_span(
                Span.from_attributes(
                    **ids,
                    sequence_id=1,
                    name=HOSTILE,
                    span_id="../../up",
                    attributes={HOSTILE: HOSTILE, "long": "x" * 9_000},
                )
            )
            await store.update_attempt(hostile.rollout_id, attempt.attempt_id, "failed")
            if attempt.sequence_id == 1:
                await store.start_attempt(hostile.rollout_id)


@pytest.fixture
def durable_url(tmp_path: Path) -> str:
    """The URL of a file. The pages on Postgres are those of a file, as test_databases shows."""
    return f"sqlite:///{tmp_path / 'rollbook.db'}"


@pytest.fixture
async def filled(durable_url: str) -> str:
    await fill(durable_url)
    return durable_url


async def bundle(url: str, directory: Path, **options: Any) -> writing.BundleReport:
    async with await SQLStore.open(url, create=False, read_only=True) as store:
        return await write_bundle(store, directory, **options)


class Links(HTMLParser):
    """The addresses and the ids of a page, and the elements that may run or send something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.active: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"href", "src"}:
                self.targets.append(value or "")
            if name == "id":
                self.ids.add(value or "")
            if name.startswith(("on", "hx-", "data-base", "data-live")) or name in {"style", "action", "srcset"}:
                self.active.append(f"{tag} {name}")
        if tag in {"form", "iframe", "object", "base"} or (tag == "script" and not dict(attrs).get("src")):
            self.active.append(tag)


async def test_every_link_leads_to_a_page_of_the_bundle(filled: str, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    report = await bundle(filled, target)
    files = {file: file.read_bytes() for file in target.rglob("*") if file.is_file()}
    pages = {file: Links(content.decode()) for file, content in files.items() if file.suffix == ".html"}
    assert (report.rollouts, report.pages) == (3, len(pages))
    for file, links in pages.items():
        assert links.active == []
        for link in links.targets:
            path, _, fragment = link.partition("#")
            assert not re.match(r"[a-z]+:|/", path)
            page = (file.parent / path).resolve() if path else file
            assert page in files
            assert page.is_relative_to(target)
            assert not fragment or fragment in pages[page].ids
    text = b"".join(files.values()).decode()
    assert str(tmp_path) not in text
    assert HOSTILE not in text
    assert "x" * 9_000 in text
    # Each attempt of the last rollout has a transcript, and spans of its own.
    kinds = sorted(file.name.split("-")[0] for file in (target / "003").iterdir())
    assert kinds == sorted(["events", "index.html", "transcript", *["span", "training", "waterfall"] * 2])
    manifest = orjson.loads(files[target / "bundle.json"])
    assert (manifest["format"], manifest["position"], len(manifest["rollouts"])) == (
        "rollbook-bundle",
        report.position,
        3,
    )


# Pages are read as those of the dashboard, and files do not depend on the database.
async def test_equal_rollouts_give_equal_bytes_and_a_bundle_is_not_overwritten(filled: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    await bundle(filled, first)
    # What a killed call left is removed.
    (tmp_path / ".second.partial" / "001").mkdir(parents=True)
    (tmp_path / ".second.partial" / "001" / "old.html").write_text("half")
    await bundle(filled, second)
    contents = [
        {str(file.relative_to(top)): file.read_bytes() for file in top.rglob("*") if file.is_file()}
        for top in (first, second)
    ]
    assert contents[0] == contents[1]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["first", "second"]  # noqa: ASYNC240
    with pytest.raises(Conflict, match="has a bundle"):
        await bundle(filled, first)
    smaller = await bundle(filled, first, overwrite=True, query=RolloutQuery(mode_in=["train"]))
    assert (smaller.rollouts, (first / "003").exists()) == (2, False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(Conflict, match="no bundle"):
        await bundle(filled, tmp_path / "other", overwrite=True)
    with pytest.raises(Invalid, match="selects no rollouts"):
        await bundle(filled, tmp_path / "none", query=RolloutQuery(mode_in=["val"]))


def contents(directory: Path) -> dict[str, bytes]:
    files = (file for file in directory.rglob("*") if file.is_file())
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


# The directory is checked before the database is read.
async def test_directory_with_files_of_other_programs_is_not_overwritten(filled: str, tmp_path: Path) -> None:
    for number, manifest in enumerate((b'{"format":"other","files":{}}', b"[]", b"{")):
        foreign = tmp_path / f"foreign {number}"
        foreign.mkdir()
        (foreign / "bundle.json").write_bytes(manifest)
        with pytest.raises(Conflict, match="is no bundle"):
            await bundle(filled, foreign, overwrite=True)
        assert contents(foreign) == {"bundle.json": manifest}
    target = tmp_path / "bundle"
    await bundle(filled, target)
    (target / "001" / "notes.txt").write_text("mine")
    before = contents(target)
    with pytest.raises(Conflict, match=r"notes\.txt is not a file of the bundle"):
        await bundle(filled, target, overwrite=True)
    assert contents(target) == before


# Files do not depend on the database.
async def test_bundle_in_the_current_directory_is_replaced(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "bundle"
    await bundle(filled, target)
    expected = contents(target)
    monkeypatch.chdir(target)
    await bundle(filled, Path(), overwrite=True, query=RolloutQuery(mode_in=["train"]))
    assert contents(Path()).keys() < expected.keys()
    await bundle(filled, Path(), overwrite=True)
    assert contents(Path()) == contents(target) == expected
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["bundle"]  # noqa: ASYNC240


# Pages are read as those of the dashboard, and files do not depend on the database.
async def test_size_of_a_bundle_is_bounded(filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_MOST_PAGES", 2)
    report = await bundle(filled, tmp_path / "small")
    assert report.pages == 1 + 3 * 3
    monkeypatch.setattr(writing, "MOST_ROLLOUTS", 2)
    with pytest.raises(Invalid, match="selects 3 rollouts, and a bundle has at most 2"):
        await bundle(filled, tmp_path / "large")


def test_page_loses_everything_that_needs_a_server() -> None:
    page = (
        '<!doctype html><html><head><meta name="htmx-config" content="{}"><link rel="preload" href="/x">'
        '<script src="/a.js"></script></head><body data-base="/p"><form action="/ui/x"><input><b>gone</b></form>'
        '<a href="https://evil.example/" onclick="x()">out</a><a href="/ui/here" hx-get="/ui/y">in &amp; out</a>'
        '<svg viewBox="0 0 1 1"><rect x="1"/></svg><time data-time="ago" title="at noon">1 s ago</time></body></html>'
    )
    converted = StaticPage.convert(page, {"/ui/here": "here.html"}.get)
    head, body = converted.split("<body>")
    assert head.startswith(
        '<!doctype html><html><head>\n<meta http-equiv="Content-Security-Policy" content="default-src \'none\''
    )
    assert head.count("<") == 5
    assert body == (
        '<a title="Not in this bundle" class="absent">out</a><a href="here.html">in &amp; out</a>'
        '<svg viewBox="0 0 1 1"><rect x="1"/></svg><time title="at noon">at noon</time></body></html>'
    )


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
@pytest.mark.asyncio(loop_scope="session")
async def test_browser_opens_a_bundle_from_files(browser: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rollbook.db'}"
    await fill(url)
    await bundle(url, tmp_path / "bundle")
    async with watched(browser) as (page, watch):
        await page.goto(f"file://{tmp_path / 'bundle' / 'index.html'}")
        rows = page.locator("table.rollouts tbody tr:visible")
        await expect(rows).to_have_count(3)
        await page.get_by_role("button", name="Reward").click()
        await expect(rows.first.get_by_role("link")).to_have_attribute("href", "002/index.html")
        await page.get_by_label("Filter the rollouts").fill("failed")
        await expect(rows).to_have_count(1)
        await rows.get_by_role("link").first.click()
        await expect(page.get_by_label("Task")).to_contain_text("<script>")
        await page.get_by_role("link", name="Waterfall").click()
        await page.locator("table.grid tbody a").first.click()
        await expect(page.locator("article.span h1")).to_contain_text("</pre><script>")
        assert await page.title() != "owned"
        assert all(request.startswith(f"file://{tmp_path / 'bundle'}/") for request in watch.asked)
        watch.check()


async def test_image_of_a_message_is_a_file_of_the_bundle(tmp_path: Path) -> None:
    async with await open_store(f"sqlite:///{tmp_path / 'run.db'}") as store:
        assert isinstance(store, SQLStore)
        begun = await store.start_rollout("look")
        part = {"type": "image_url", "image_url": {"url": IMAGE}}
        attributes = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": orjson.dumps([part]).decode()}
        await store.add_span(
            Span.from_attributes(
                attributes=attributes,
                rollout_id=begun.rollout_id,
                attempt_id=begun.attempt.attempt_id,
                sequence_id=1,
                span_id="1" * 16,
                name="chat",
            )
        )
        await write_bundle(store, tmp_path / "bundle")
    (image,) = (tmp_path / "bundle" / "001").glob("image-*")
    assert image.read_bytes() == base64.b64decode(IMAGE.partition(",")[2])
    assert f"../001/{image.name}" in Links((tmp_path / "bundle" / "001" / "index.html").read_text()).targets
