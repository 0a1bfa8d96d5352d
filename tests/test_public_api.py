"""Names that `import store` provides, its time, and no side effects."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import store
from store import InMemoryLightningStore, SyncStore, errors, models, training
from tests.documented_names import public_names, same

ROOT = Path(__file__).parents[1]
STUBS = sorted((ROOT / "store").rglob("*.pyi"))
# What Agent-lightning 0.3 exports of its store and its types, as far as they have a counterpart.
UPSTREAM = {
    "LLM",
    "Attempt",
    "AttemptStatus",
    "AttemptedRollout",
    "AttributeValue",
    "Attributes",
    "EnqueueRolloutRequest",
    "Event",
    "InMemoryLightningStore",
    "LightningStore",
    "LightningStoreCapabilities",
    "LightningStoreStatistics",
    "Link",
    "NamedResources",
    "OtelResource",
    "PaginatedResult",
    "PromptTemplate",
    "ProxyLLM",
    "Resource",
    "ResourceUnion",
    "ResourcesUpdate",
    "Rollout",
    "RolloutConfig",
    "RolloutMode",
    "RolloutStatus",
    "Span",
    "SpanContext",
    "TaskInput",
    "TraceStatus",
    "Worker",
    "WorkerStatus",
}
# Its store's methods: what may be given by position, and behind the star what is given by name, with defaults.
METHODS = {
    "start_rollout": "input, mode=None, resources_id=None, config=None, metadata=None, worker_id=None",
    "enqueue_rollout": "input, mode=None, resources_id=None, config=None, metadata=None",
    "enqueue_many_rollouts": "rollouts",
    "dequeue_rollout": "worker_id=None",
    "dequeue_many_rollouts": "*, limit=1, worker_id=None",
    "start_attempt": "rollout_id, worker_id=None",
    "add_span": "span",
    "add_many_spans": "spans",
    "add_otel_span": "rollout_id, attempt_id, readable_span, sequence_id=None",
    "get_next_span_sequence_id": "rollout_id, attempt_id",
    "get_many_span_sequence_ids": "rollout_attempt_ids",
    "wait_for_rollouts": "*, rollout_ids, timeout=None",
    "query_rollouts": (
        "*, status_in=None, rollout_id_in=None, rollout_id_contains=None, filter_logic='and', sort_by=None,"
        " sort_order='asc', limit=-1, offset=0, status=None, rollout_ids=None"
    ),
    "get_rollout_by_id": "rollout_id",
    "update_rollout": (
        "rollout_id, input=UNSET, mode=UNSET, resources_id=UNSET, status=UNSET, config=UNSET, metadata=UNSET"
    ),
    "query_attempts": "rollout_id, *, sort_by='sequence_id', sort_order='asc', limit=-1, offset=0",
    "get_latest_attempt": "rollout_id",
    "update_attempt": (
        "rollout_id, attempt_id, status=UNSET, worker_id=UNSET, last_heartbeat_time=UNSET, metadata=UNSET"
    ),
    "query_spans": (
        "rollout_id, attempt_id=None, *, trace_id=None, trace_id_contains=None, span_id=None, span_id_contains=None,"
        " parent_id=None, parent_id_contains=None, name=None, name_contains=None, filter_logic='and', limit=-1,"
        " offset=0, sort_by='sequence_id', sort_order='asc'"
    ),
    "add_resources": "resources",
    "update_resources": "resources_id, resources",
    "query_resources": (
        "*, resources_id=None, resources_id_contains=None, sort_by=None, sort_order='asc', limit=-1, offset=0"
    ),
    "get_resources_by_id": "resources_id",
    "get_latest_resources": "",
    "query_workers": (
        "*, status_in=None, worker_id_contains=None, filter_logic='and', sort_by=None, sort_order='asc', limit=-1,"
        " offset=0"
    ),
    "get_worker_by_id": "worker_id",
    "update_worker": "worker_id, heartbeat_stats=UNSET",
    "statistics": "",
    "otlp_traces_endpoint": "",
}
HEAVY = ("aiosqlite", "alembic", "asyncpg", "opentelemetry", "rich", "sqlalchemy", "typer")


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_name_is_there_once_and_in_order() -> None:
    def in_order(name: str) -> tuple[bool, bool, str]:
        return (not name.isupper(), not name[0].isupper(), name)

    assert public_names(store) == sorted(set(public_names(store)), key=in_order)
    assert [name for name in public_names(store) if not hasattr(store, name)] == []


def test_every_error_and_every_model_is_public() -> None:
    assert set(errors.__all__) | set(public_names(models)) <= set(public_names(store))


def test_agent_lightnings_names_are_there() -> None:
    assert set(public_names(store)) >= UPSTREAM


def test_agent_code_needs_one_import() -> None:
    assert set(public_names(training)) <= set(public_names(store))
    of_loop = {entry.name for entry in same() if not entry.module.endswith((".collections", ".span_attributes"))}
    assert of_loop <= set(public_names(store))
    assert store.Trainer is training.Trainer


def test_inputs_are_mappings_not_dicts() -> None:
    strict: list[str] = []
    for name in public_names(store):
        value = getattr(store, name)
        methods = [value] if inspect.isfunction(value) else []
        if inspect.isclass(value) and not (value.__module__ or "").startswith(("builtins", "store.models")):
            # The fields of a dataclass are read, too.
            first = "" if dataclasses.is_dataclass(value) else "__init__"
            methods = [
                member
                for attribute, member in vars(value).items()
                if attribute == first or not attribute.startswith("_")
            ]
        for method in filter(inspect.isfunction, methods):
            annotations = {argument: text for argument, text in method.__annotations__.items() if argument != "return"}
            strict += [
                f"{name}.{method.__name__}({argument})"
                for argument, text in annotations.items()
                if "dict[" in str(text)
            ]
    assert strict == []


async def test_open_store_is_awaited_or_entered() -> None:
    async with store.open_store("memory://") as entered:
        assert isinstance(entered, store.Store)
        await entered.enqueue_rollout(1)
    with pytest.raises(store.Closed):
        await entered.enqueue_rollout(2)
    async with await store.open_store("memory://") as awaited:
        await awaited.enqueue_rollout(1)
    task = asyncio.create_task(store.open_store("memory://"))
    await (await asyncio.wait_for(task, 60)).close()
    with pytest.raises(store.Invalid):
        async with store.open_store("nowhere://"):
            pass


def test_open_store_runs_without_a_loop() -> None:
    opened = asyncio.run(store.open_store("memory://"))
    asyncio.run(opened.close())


def test_every_call_written_for_agent_lightning_binds() -> None:
    failures: list[str] = []
    for interface in (store.Store, SyncStore):
        for method in METHODS:
            try:
                _check_signature(interface, method)
            except (AssertionError, TypeError) as error:
                failures.append(f"{interface.__name__}.{method}: {error}")
    assert failures == []


def _check_signature(interface: type, method: str) -> None:
    """Check that a method binds the arguments of Agent-lightning's.

    Raises:
        AssertionError: a name or a default differs.
        TypeError: the arguments do not bind.
    """
    positional, _, named = METHODS[method].partition("*, ")
    parameters = [entry.partition("=") for part in (positional, named) for entry in part.split(", ") if entry]
    signature = inspect.signature(getattr(interface, method))
    by_position = [entry for entry in positional.split(", ") if entry]
    signature.bind(object(), *by_position, **{name.partition("=")[0]: 0 for name in named.split(", ") if name})
    signature.bind(object(), **{name: 0 for name, _, _ in parameters})
    ours = list(signature.parameters.values())[1:]
    assert [entry.name for entry in ours[: len(by_position)]] == [name.partition("=")[0] for name in by_position]
    for name, has_default, default in parameters:
        expected = inspect.Parameter.empty if not has_default else default
        actual = signature.parameters[name].default
        assert (actual if actual is inspect.Parameter.empty else repr(actual)) == expected, name
    # Parameters that Agent-lightning does not have can be left out.
    names = {name for name, _, _ in parameters}
    assert [entry.name for entry in ours if entry.name not in names and entry.default is inspect.Parameter.empty] == []


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.parent.name)
def test_a_type_checker_sees_the_names_that_are_imported_late(stub: Path) -> None:
    package = import_module(".".join(stub.parent.relative_to(ROOT).parts))
    imports = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    names = {alias.name: node.module for node in imports for alias in node.names if alias.name != "*"}
    for name, module in names.items():
        assert getattr(package, name) is getattr(import_module(str(module)), name), name
    assert names.keys() <= set(public_names(package))
    # Without the repetition, the name is imported for the stub only.
    assert names.keys() == {alias.asname for node in imports for alias in node.names if alias.name != "*"}


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    mistyped = "open_stoer"
    with pytest.raises(AttributeError, match="no attribute 'open_stoer'"):
        getattr(store, mistyped)


def test_completion_knows_the_late_names() -> None:
    assert set(dir(store)) >= set(public_names(store))


def test_importing_brings_neither_a_database_nor_a_command_line() -> None:
    program = f"import sys, store; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert python(program).strip() == "[]"


@pytest.mark.slow
def test_importing_and_opening_leaves_the_programs_logging_alone() -> None:
    program = (
        "import asyncio, logging\n"
        "before = (list(logging.root.handlers), logging.root.level)\n"
        "import store\n"
        "asyncio.run(store.InMemoryLightningStore().enqueue_rollout(1))\n"
        "assert (list(logging.root.handlers), logging.root.level) == before\n"
        "named = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith('store')]\n"
        "assert all(not each.handlers and each.level == logging.NOTSET and each.propagate for each in named)"
    )
    assert python(program) == ""


def test_the_store_in_memory_is_open_as_soon_as_it_is_made() -> None:
    memory = InMemoryLightningStore(thread_safe=True, scan_debounce_seconds=0)
    assert isinstance(memory, store.LightningStore)
    rollout = asyncio.run(memory.enqueue_rollout({"question": 1}))
    claimed = asyncio.run(memory.dequeue_rollout("worker"))
    assert claimed is not None
    assert claimed.rollout_id == rollout.rollout_id
    asyncio.run(memory.close())


async def test_the_store_in_memory_can_be_made_where_a_loop_is_running() -> None:
    async with InMemoryLightningStore() as memory:
        assert (await memory.statistics()).get("name") == "InMemoryLightningStore"


async def test_two_stores_in_memory_share_nothing() -> None:
    async with InMemoryLightningStore() as one, InMemoryLightningStore() as other:
        await one.enqueue_rollout(1)
        assert (await other.query_rollouts()).total == 0


@pytest.mark.slow
def test_unclosed_memory_store_neither_delays_exit_nor_leaves_a_file() -> None:
    program = (
        "import asyncio, store\n"
        "memory = store.InMemoryLightningStore()\n"
        "asyncio.run(memory.enqueue_rollout(1))\n"
        "asyncio.run(memory.query_rollouts())\n"
        "print(memory.core.dialect.path)"
    )
    path = Path(python(program).strip())
    assert not [file for file in path.parent.iterdir() if file.name.startswith(path.name)]


def test_a_store_in_memory_reads_the_clock_it_is_given() -> None:
    memory = InMemoryLightningStore(clock=lambda: 1_700_000_000_000_000)
    assert asyncio.run(memory.enqueue_rollout(1)).start_time == 1_700_000_000
    asyncio.run(memory.close())


def test_the_methods_without_await_are_those_of_the_interface() -> None:
    def methods(of: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(of) if not name.startswith("_")}

    assert methods(store.Store) - {"sync"} <= methods(SyncStore)
