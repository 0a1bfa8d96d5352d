"""The files of docs/deploy: their programs accept them, and every command in them exists with its options."""

from __future__ import annotations

import inspect
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
from store.training.execution import ClientServerExecutionStrategy

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "docs" / "deploy"
PROGRAM = "/opt/rollbook/bin/rollbook"
BIN = Path(sys.executable).parent
SBATCH = DEPLOY / "runners.sbatch"
AGENTS = "/opt/agents"
KUBERNETES = ("1.30", "1.37")
# The fields of KubeRay 1.7, from ray.io_rayjobs.yaml in ray-operator/config/crd/bases of ray-project/kuberay. Those
# before the bar are required.
_JOB = (
    "| activeDeadlineSeconds backoffLimit clusterSelector deletionStrategy entrypoint entrypointNumCpus"
    " entrypointNumGpus entrypointResources jobId managedBy metadata preRunningDeadlineSeconds rayClusterSpec"
    " runtimeEnvYAML shutdownAfterJobFinishes submissionMode submitterConfig submitterPodTemplate suspend"
    " ttlSecondsAfterFinished"
)
_CLUSTER = (
    "headGroupSpec | authOptions autoscalerOptions enableInTreeAutoscaling gcsFaultToleranceOptions"
    " headServiceAnnotations historyServerOptions managedBy networkPolicy rayVersion suspend tlsOptions upgradeStrategy"
    " workerGroupSpecs"
)
_HEAD = "template | enableIngress headService ingressOptions labels rayStartParams resources serviceType"
_WORKERS = (
    "groupName maxReplicas minReplicas template | idleTimeoutSeconds labels numOfHosts priority rayStartParams replicas"
    " resources scaleStrategy suspend"
)


def _compose(name: str = "compose.yaml") -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / name).read_text())


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
    (default,) = re.findall(r"^CMD (.+)$", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    yield "Dockerfile", json.loads(default)
    for name, pod in pods():
        for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
            if "args" in container:
                yield f"{name} {container['name']}", container["args"]
    for job in resources("RayJob"):
        program, *arguments = shlex.split(job["spec"]["entrypoint"])
        assert program == "rollbook"
        yield "rayjob.yaml", arguments
    (line,) = re.findall(r"^srun rollbook (.+)$", SBATCH.read_text(), flags=re.MULTILINE)
    yield SBATCH.name, shlex.split(line.replace("$SLURM_CPUS_PER_TASK", "4"))


def resources(kind: str | None = None) -> list[dict[str, Any]]:
    """Return the resources of all manifests for Kubernetes, or those of a kind."""
    documents = [
        document
        for name in ("kubernetes.yaml", "rayjob.yaml")
        for document in yaml.safe_load_all((DEPLOY / name).read_text())
    ]
    return [document for document in documents if kind in {None, document["kind"]}]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the templates of all pods, with the names of their resources."""
    for deployment in resources("Deployment"):
        yield deployment["metadata"]["name"], deployment["spec"]["template"]
    for job in resources("RayJob"):
        cluster = job["spec"]["rayClusterSpec"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            yield job["metadata"]["name"], group["template"]


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


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_accepts_the_manifests(version: str) -> None:
    validate: Any = pytest.importorskip("kubernetes_validate").validate
    templates = [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": pod} for name, pod in pods()
    ]
    core = [resource for resource in resources() if resource["kind"] != "RayJob"]
    assert core
    for resource in [*core, *templates]:
        validate(resource, version, strict=True)


def test_kuberay_has_the_fields_of_the_job() -> None:
    for job in resources("RayJob"):
        assert job["apiVersion"] == "ray.io/v1"
        _check_fields(job["spec"], _JOB)
        cluster = job["spec"]["rayClusterSpec"]
        _check_fields(cluster, _CLUSTER)
        _check_fields(cluster["headGroupSpec"], _HEAD)
        for group in cluster["workerGroupSpecs"]:
            _check_fields(group, _WORKERS)
            assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def _check_fields(resource: dict[str, Any], fields: str) -> None:
    required, _, optional = fields.partition("|")
    assert set(required.split()) <= resource.keys() <= set(required.split()) | set(optional.split())


def test_references_of_the_manifests_resolve() -> None:
    (service,) = resources("Service")
    labels = {tuple(pod.get("metadata", {}).get("labels", {}).items()) for _, pod in pods()}
    assert tuple(service["spec"]["selector"].items()) in labels
    for deployment in resources("Deployment"):
        assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
    (port,) = [port["port"] for port in service["spec"]["ports"]]
    texts = "".join((DEPLOY / name).read_text() for name in ("kubernetes.yaml", "rayjob.yaml"))
    secrets = set(re.findall(r"create secret generic ([\w-]+) --from-file=(\w+)", texts))
    for _, pod in pods():
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts.keys() <= volumes.keys()
            for variable in container["env"]:
                if variable["name"] == "PYTHONPATH":
                    assert variable["value"] == AGENTS
                elif variable["name"].endswith("_FILE"):
                    directory, _, file = variable["value"].rpartition("/")
                    (volume,) = [volumes[name] for name, path in mounts.items() if path == directory]
                    assert (volume["secret"]["secretName"], file) in secrets
                else:
                    assert variable == {"name": "ROLLBOOK_DB", "value": f"http://{service['metadata']['name']}:{port}"}


def test_the_images_of_the_page_are_those_of_the_manifests() -> None:
    page = (ROOT / "docs" / "clusters.md").read_text()
    (tag,) = re.findall(r"^FROM rayproject/ray:([\d.]+)", page, re.MULTILINE)
    assert set(re.findall(r"\bCOPY [^\n`]* (/[\w/]+/)", page)) == {"/tmp/", f"{AGENTS}/"}
    assert [job["spec"]["rayClusterSpec"]["rayVersion"] for job in resources("RayJob")] == [tag]


def test_slurm_signals_the_runners_and_not_their_shell() -> None:
    text = SBATCH.read_text()
    checked = subprocess.run(["bash", "-n", SBATCH], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    # SLURM reads directives up to the first command, and signals the steps that srun starts.
    directives, _, script = text.partition("\ncd ")
    assert "#SBATCH" not in script
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", directives, re.MULTILINE))
    assert len(options) == directives.count("#SBATCH")
    number, _, seconds = options["signal"].partition("@")
    assert number == "TERM"
    assert int(seconds) >= seconds_to_end(shlex.split(script))


def test_platforms_wait_longer_than_runners() -> None:
    (unit,) = DEPLOY.glob("rollbook-runner*.service")
    (command,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), re.MULTILINE)
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit.read_text(), re.MULTILINE)
    waits = [
        (pod["spec"]["terminationGracePeriodSeconds"], container.get("args", []))
        for _, pod in pods()
        for container in pod["spec"]["containers"]
        if container["name"] in {"runner", "ray-worker"}
    ]
    assert len(waits) == 2
    assert all(wait >= seconds_to_end(arguments) for wait, arguments in [(int(seconds), shlex.split(command)), *waits])


def seconds_to_end(arguments: list[str]) -> float:
    """Return the time after SIGTERM in which a runner ends by itself: its grace, then the end of its processes."""
    parameters = inspect.signature(ClientServerExecutionStrategy).parameters
    grace = parameters["graceful_timeout"].default
    if "--grace" in arguments:
        grace = float(arguments[arguments.index("--grace") + 1])
    return grace + 2 * parameters["terminate_timeout"].default
