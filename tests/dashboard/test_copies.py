"""Text that pages offer for copying is one command in a shell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

import pytest

from store.interface.store import Store
from store.models import RunEvent
from tests.dashboard.page_helpers import Read
from tests.dashboard.traces import a_span, member
from tests.server.api import Api

HOSTILE = "x';touch$IFS'hit';';touch hit;'$(touch hit)`touch hit`\";touch hit;\"|touch hit&\ntouch hit\n"


def was_hit(directory: Path) -> bool:
    return (directory / "hit").exists()


PATHS = (
    "audit?stream=rollout/{id}", "groups/{id}", "groups?q={id}", "workers/{id}", "resources/{id}", "failures?q={id}",
    "rollouts?group={id}&q={id}", "compare?a={rollout}&b={rollout}&x={id}", "rollouts/{rollout}/spans/{id}",
    "rollouts/{rollout}/spans?x={id}", "runs/{rollout}?node={id}&scope={id}", "runs/{rollout}/rerun?node={id}",
    "rollouts/{rollout}?x={id}",
)  # fmt: skip


async def test_the_ids_of_strangers_are_no_commands(
    api: Api, store: Store, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    await store.update_resources(HOSTILE, {})
    rollout = await member(store, HOSTILE, worker_id=HOSTILE, resources_id=HOSTILE)
    await store.add_many_spans([a_span(rollout, 9, span_id=HOSTILE)])
    event = RunEvent(kind="result", node_id=HOSTILE, scope=HOSTILE)
    await store.runs.append_events(rollout.rollout_id, rollout.attempt.attempt_id, [event])
    for path in PATHS:
        with subtests.test(path=path):
            # As browsers write it: in a path they leave these as they are.
            encoded = quote(HOSTILE, safe="'$;|()" if "{id}" in path.partition("?")[0] else "")
            address = path.format(id=encoded, rollout=rollout.rollout_id)
            page = await api.get(f"//ui/{address}")
            commands = [text for text in Read(page.body).marked("data-copy") if text.startswith(("rollbook ", "curl "))]
            assert page.status in {200, 422}
            assert commands
            for command in commands:
                shell = await asyncio.create_subprocess_exec(
                    "sh", "-c", f"rollbook() {{ :; }}; curl() {{ :; }}; {command}", cwd=tmp_path
                )
                assert await shell.wait() == 0, command
                assert not was_hit(tmp_path), command
