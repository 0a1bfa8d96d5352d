"""`make test-changed` runs the folders that depend on what has changed."""

from __future__ import annotations

import pytest

from tests.changed import Dependencies

# They share the graph of imports, which takes most of the time.
pytestmark = pytest.mark.xdist_group("changed")


@pytest.fixture(scope="module")
def dependencies() -> Dependencies:
    return Dependencies()


def test_change_of_a_command_runs_the_folders_that_import_it(dependencies: Dependencies) -> None:
    folders = dependencies.affected_tests({"store/cli/app.py"})
    assert "tests/cli" in folders
    assert not {"tests/domain", "tests/contract", "tests/journal", "tests/training"} & set(folders)


def test_change_below_the_store_runs_every_folder_that_opens_one(dependencies: Dependencies) -> None:
    folders = dependencies.affected_tests({"store/journal/writer.py"})
    assert {"tests/contract", "tests/journal", "tests/training", "tests/server", "tests/cli"} <= set(folders)


def test_template_belongs_to_its_package(dependencies: Dependencies) -> None:
    assert "tests/dashboard" in dependencies.affected_tests({"store/dashboard/templates/base.html"})


def test_change_of_a_test_helper_runs_the_folders_that_import_it(dependencies: Dependencies) -> None:
    folders = dependencies.affected_tests({"tests/client/served.py"})
    assert {"tests/client", "tests/contract"} <= set(folders)
    assert "tests/domain" not in folders


def test_change_of_a_document_runs_the_modules_directly_below_tests(dependencies: Dependencies) -> None:
    paths = dependencies.affected_tests({"README.md"})
    assert "tests/test_docs.py" in paths
    assert all(path.endswith(".py") for path in paths)


def test_no_change_runs_nothing(dependencies: Dependencies) -> None:
    assert dependencies.affected_tests(set()) == []
