"""Methods of a client are replaced when the client is imported, and not before."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from store.training.model_clients.client_patches import ClientMethods, patch_client, unpatch_client

SOURCE = "class Things:\n    def create(self): return 'made'\nclass AsyncThings:\n    def create(self): return 'made'\n"


def marked(original: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
    def create(self: Any) -> str:
        return f"{original(self)}, {'async' if is_async else 'sync'}"

    return create


def target(package: str) -> ClientMethods:
    return ClientMethods(f"{package}.things", ("Things", "AsyncThings"), ("create", "parse"), marked)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a client that can be imported and is not."""
    name = f"rollbook_client_{tmp_path.name}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "things.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return name


def test_a_client_is_patched_when_it_is_imported(package: str) -> None:
    methods = target(package)
    assert patch_client(package, [methods])
    assert patch_client(package, [methods])
    assert f"{package}.things" not in sys.modules
    things = import_module(f"{package}.things")
    assert (things.Things().create(), things.AsyncThings().create()) == ("made, sync", "made, async")
    # Nothing of this can be seen in the module.
    assert things.__spec__ is not None
    assert things.__spec__.loader is things.__loader__
    assert inspect.getsource(things) == SOURCE
    unpatch_client([methods])
    assert (things.Things().create(), things.AsyncThings().create()) == ("made", "made")


def test_a_client_that_is_imported_is_patched_once(package: str) -> None:
    things = import_module(f"{package}.things")
    methods = target(package)
    assert patch_client(package, [methods])
    assert patch_client(package, [methods])
    assert things.Things().create() == "made, sync"
    unpatch_client([methods])
    assert things.Things().create() == "made"


def test_patch_undone_before_the_import_is_not_applied(package: str) -> None:
    methods = target(package)
    assert patch_client(package, [methods])
    unpatch_client([methods])
    assert import_module(f"{package}.things").Things().create() == "made"


def test_an_import_that_fails_is_patched_when_it_succeeds(package: str, tmp_path: Path) -> None:
    module = tmp_path / package / "things.py"
    module.write_text("raise RuntimeError('not yet')")
    methods = target(package)
    assert patch_client(package, [methods])
    with pytest.raises(RuntimeError, match="not yet"):
        import_module(f"{package}.things")
    module.write_text(SOURCE + "# longer than before, or the old bytecode would count")
    assert import_module(f"{package}.things").Things().create() == "made, sync"
    unpatch_client([methods])


def test_a_client_that_is_not_installed_is_left_alone() -> None:
    before = list(sys.meta_path)
    assert not patch_client("rollbook_no_such_client", [target("rollbook_no_such_client")])
    assert sys.meta_path == before


@pytest.mark.slow
def test_a_tracer_imports_neither_clients_nor_the_proxys_server() -> None:
    program = (
        "import sys\nfrom store.training import Tracer\nTracer().init()\n"
        "heavy = ('openai', 'anthropic', 'langchain_core', 'uvicorn', 'aiohttp')\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "from openai.resources.embeddings import Embeddings\nprint(hasattr(Embeddings.create, '__wrapped__'))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["[]", "True"]
