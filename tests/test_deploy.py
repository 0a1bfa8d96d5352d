"""The files of docs/deploy: their programs accept them, and every command in them exists with its options."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from store.cli.app import app
from store.db.url import parse

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "docs" / "deploy"
PROGRAM = "/opt/rollbook/bin/rollbook"
BIN = Path(sys.executable).parent


def _compose(name: str = "compose.yaml") -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / name).read_text())


def _pod() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "kubernetes-runners.yaml").read_text())["spec"]["template"]["spec"]


def _sbatch_command() -> list[str]:
    last = (DEPLOY / "runners.sbatch").read_text().splitlines()[-1]
    return shlex.split(last.partition(" rollbook ")[2])


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the arguments of each call of rollbook, with the file that contains the call."""
    for unit in sorted(DEPLOY.glob("*.service")):
        (line,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), flags=re.MULTILINE)
        program, *arguments = shlex.split(line)
        assert program == PROGRAM
        # The configuration file is that of the page.
        assert arguments[0] == "--config"
        yield unit.name, arguments[2:]
    for name, service in _compose()["services"].items():
        if service["image"] == "rollbook":
            yield f"compose.yaml {name}", service["command"]
    yield "kubernetes-runners.yaml", _pod()["containers"][0]["args"]
    yield "runners.sbatch", _sbatch_command()
    (default,) = re.findall(r"^CMD (.+)$", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    yield "Dockerfile", json.loads(default)


@pytest.mark.parametrize("file, arguments", list(commands()), ids=str)
def test_every_command_exists_with_its_options(file: str, arguments: list[str]) -> None:
    # An unknown option or command is an error even beside --help.
    result = CliRunner().invoke(app, [*arguments, "--help"])
    assert result.exit_code == 0, (file, result.output)


def test_the_configuration_of_the_page_is_accepted(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "production.md").read_text(), flags=re.DOTALL)
    (tmp_path / "rollbook.toml").write_text(text)
    for command in tomllib.loads(text).keys() - {"db"}:
        result = CliRunner().invoke(app, ["--config", str(tmp_path / "rollbook.toml"), command, "--help"])
        assert result.exit_code == 0, result.output


def test_runners_are_killed_only_after_they_have_returned_their_work() -> None:
    pod, script = _pod(), (DEPLOY / "runners.sbatch").read_text()
    unit = (DEPLOY / "rollbook-runner@.service").read_text()
    arguments = pod["containers"][0]["args"]
    waits = [
        (arguments[arguments.index("--grace") + 1], pod["terminationGracePeriodSeconds"]),
        (_sbatch_command()[-1], re.findall(r"--signal=TERM@(\d+)", script)[0]),
        ("10", re.findall(r"TimeoutStopSec=(\d+)", unit)[0]),
    ]
    assert [int(killed_after) - int(grace) >= 20 for grace, killed_after in waits] == [True] * 3
    assert subprocess.run(["bash", "-n", DEPLOY / "runners.sbatch"], check=False).returncode == 0


@pytest.mark.slow
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("this machine has no systemd-analyze")
    for unit in [*DEPLOY.glob("*.service"), *DEPLOY.glob("*.socket")]:
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, str(BIN / "rollbook")))
    checked = subprocess.run(
        [program, "verify", *map(str, sorted(tmp_path.iterdir()))], capture_output=True, text=True, check=False
    )
    complaints = [line for line in checked.stderr.splitlines() if line.startswith(("rollbook", str(tmp_path)))]
    assert complaints == []


def test_the_image_has_no_findings() -> None:
    linter = BIN / "hadolint"
    if not linter.exists():
        pytest.skip("hadolint has no wheel for this machine")
    linted = subprocess.run([linter, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout) == (0, "")


def test_sqlite_in_a_container_has_the_directory_of_the_file_as_its_volume() -> None:
    (server,) = _compose("compose-sqlite.yaml")["services"].values()
    file = parse(server["environment"]["ROLLBOOK_DB"]).path
    assert file is not None
    assert [volume.partition(":")[2] for volume in server["volumes"]] == [str(file.parent)]
    assert server["command"] == _compose()["services"]["server"]["command"]


def test_references_of_the_services_resolve() -> None:
    compose = _compose()
    for service in compose["services"].values():
        assert set(service.get("secrets", [])) <= compose["secrets"].keys()
        assert set(service.get("depends_on", {})) <= compose["services"].keys()
        if "build" in service:
            assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]).is_file()
