"""Answers of a server of the recorded databases: every read of the API as JSON, and the form of each page's JSON."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import aiohttp
from yarl import URL

from store.dashboard.site import ROUTES
from store.sql.store import SQLStore

# The query without which a read is refused, or which makes its answer say more.
_QUERIES = {
    "/v1/agl/rollouts": "status_in=failed&status_in=running&sort_by=start_time&sort_order=desc&limit=3",
    "/v1/agl/rollouts/{rollout_id}": "at=4",
    "/v1/agl/rollouts/{rollout_id}/attempts/{attempt_id}": "as_at=290",
    "/v1/agl/rollouts/{rollout_id}/history": "after=1&limit=4",
    "/v1/agl/rollouts/{rollout_id}/events": "limit=8&view=raw",
    "/v1/agl/rollouts/{rollout_id}/checkpoints": "scope=RIG",
    "/v1/agl/rollouts/{rollout_id}/checkpoints/latest": "scope=RIG&name=researched",
    "/v1/agl/rollouts/{rollout_id}/artifacts": "scope=MAIN",
    "/v1/agl/rollouts/{rollout_id}/compare": "a=1&b=2",
    "/v1/agl/artifacts": "scope=RIG&limit=2",
    "/v1/agl/spans": "rollout_id={spanned}&attempt_id=latest&name_contains=e",
    "/v1/agl/resources": "resources_id_contains=prompt",
    "/v1/agl/workers": "status_in=busy&limit=2",
    "/v1/agl/log": "limit=3",
    "/api/run/": "limit=2",
}
_POSTED: dict[str, dict[str, Any]] = {
    "/v1/agl/rollouts/search": {"status_in": ["cancelled"], "limit": 1},
    "/v1/agl/rollouts/{rollout_id}/attempts/search": {"sort_order": "desc", "limit": 2},
    "/v1/agl/spans/search": {"rollout_id": "{spanned}", "name": "agent", "filter_logic": "and"},
    "/v1/agl/workers/search": {"worker_id_contains": "desk"},
    "/v1/agl/rollouts/{rollout_id}/forks:plan": {"phase": "risk", "scopes": ["RIG"]},
    "/v1/agl/verify": {},
}
# A stream without end, and what is not of a store.
_UNREAD = {"/v1/agl/rollouts/{rollout_id}/events/stream", "/livez", "/readyz", "/metrics"}
# What differs from one database or one moment to the next.
_VARYING = {"store_id", "cursor", "uptime", "seconds"}
_VARYING_IN = {"/v1/agl/store": {"partition", "version"}}


async def ids_of(store: SQLStore) -> dict[str, str]:
    """Return what the placeholders of paths stand for: the run that was run again, and what belongs to it."""
    rollouts = (await store.query_rollouts()).items
    run = next(rollout for rollout in rollouts if rollout.metadata and rollout.metadata.get("rollbook.group") == "desk")
    attempts = await store.query_attempts(run.rollout_id)
    checkpoints = await store.runs.list_checkpoints(run.rollout_id)
    return {
        "rollout_id": run.rollout_id,
        "run": run.rollout_id,
        "spanned": rollouts[0].rollout_id,
        "attempt_id": attempts[0].attempt_id,
        "checkpoint_id": checkpoints[0].checkpoint_id,
        "resources_id": "prompts",
        "task": "none",
        "worker_id": "worker-4",
        "group_id": "desk",
        "span_id": f"{1:016x}",
    }


async def wire_answers(url: str, ids: dict[str, str]) -> dict[str, Any]:
    """Return the status and the JSON of every read of the API, by its route."""
    answers: dict[str, Any] = {}
    async with aiohttp.ClientSession() as session:
        async with session.get(URL(url).origin() / "openapi.json") as answer:
            described = (await answer.json())["paths"]
        operations = [(method.upper(), path) for path, methods in described.items() for method in methods]
        for method, path in operations:
            if (method == "GET" and path not in _UNREAD) or path in _POSTED:
                query = _filled(_QUERIES.get(path, ""), ids)
                body = {name: _filled(value, ids) for name, value in _POSTED.get(path, {}).items()}
                full = URL(f"{url}{_filled(path, ids)}?{query}", encoded=True)
                async with session.request(method, full, json=body if method == "POST" else None) as answer:
                    answered = _constant(await answer.json(), _VARYING | _VARYING_IN.get(path, set()))
                    answers[f"{method} {path}"] = {"status": answer.status, "body": answered}
    return answers


async def page_forms(url: str, ids: dict[str, str]) -> dict[str, Any]:
    """Return the status of each page's JSON, and the names and kinds of what it holds, by the page's route."""
    forms: dict[str, Any] = {}
    async with aiohttp.ClientSession() as session:
        for path in sorted({route.path for route in ROUTES if route.method == "GET"}):
            page_ids = ids | {"rollout_id": ids["spanned"], "key": "0"} if path.startswith("/ui/rollouts/") else ids
            twin = "/ui/overview" if path == "/ui/" else _filled(path, page_ids)
            query = f"?a={ids['rollout_id']}&b={ids['spanned']}" if path == "/ui/compare" else ""
            async with session.get(f"{url}{twin}.json{query}") as answer:
                is_json = answer.content_type == "application/json"
                forms[path] = {"status": answer.status, "form": _form(await answer.json()) if is_json else None}
    return forms


def _filled(text: Any, ids: dict[str, str]) -> Any:
    return re.sub(r"\{(\w+)\}", lambda name: ids[name[1]], text) if isinstance(text, str) else text


def _constant(value: Any, varying: set[str]) -> Any:
    match value:
        case dict():
            items = cast("dict[str, Any]", value).items()
            return {name: "…" if name in varying else _constant(item, varying) for name, item in items}
        case list():
            return [_constant(item, varying) for item in cast("list[Any]", value)]
        case _:
            return value


def _form(value: Any) -> Any:
    match value:
        case dict():
            return {name: _form(item) for name, item in sorted(cast("dict[str, Any]", value).items())}
        case list():
            forms = [_form(item) for item in cast("list[Any]", value)]
            return [_joined(forms)] if forms else []
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case _:
            return "text"


def _joined(forms: list[Any]) -> Any:
    """Return one form for the elements of a list: the names of all of them, and every kind that a name has."""
    if all(isinstance(form, dict) for form in forms):
        names = sorted({name for form in forms for name in form})
        return {name: _joined([form[name] for form in forms if name in form]) for name in names}
    if all(isinstance(form, list) for form in forms):
        return [_joined(inner)] if (inner := [item for form in forms for item in form]) else []
    kinds = {kind for form in forms for kind in (form if isinstance(form, str) else json.dumps(form)).split("|")}
    return "|".join(sorted(kinds))
