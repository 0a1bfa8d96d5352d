"""Options of `rollbook runner` about its processes, as a dataclass whose fields are options."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from store.cli.output.printing import progress_line
from store.errors import Invalid

if TYPE_CHECKING:
    from store.training.execution import ClientServerExecutionStrategy, RayExecutionStrategy
    from store.training.execution.fleet import Fleet


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Options of the number of processes and of their place."""

    runners: Annotated[
        int | None,
        typer.Option("--runners", "-n", metavar="N", min=1, help="The number of processes; by default 1."),
    ] = None
    minimum: Annotated[
        int | None,
        typer.Option("--min", metavar="N", min=0, help="With --max: the smallest number of processes; by default 1."),
    ] = None
    maximum: Annotated[
        int | None,
        typer.Option(
            "--max",
            metavar="N",
            min=1,
            help="Let the number of processes follow the queue, up to N: it grows at once, and shrinks slowly.",
        ),
    ] = None
    per_runner: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="With --max: the number of rollouts, waiting or running, that call for a process; by default 1.",
        ),
    ] = None
    grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="After SIGTERM, let running attempts continue for this time; then their rollouts return to the queue.",
        ),
    ] = 10.0
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run the processes as actors of a Ray cluster: host:port, or `auto` for the cluster of this machine.",
        ),
    ] = None
    ray_options: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="With --ray: arguments of RayExecutionStrategy, such as num_cpus, resources, placement, runtime_env.",
        ),
    ] = None

    def fleet(self, name: str | None) -> Fleet | None:
        """Return the settings of processes whose number follows the queue; None for a fixed number.

        Args:
            name: the name of the workers, before their number.

        Raises:
            Invalid: options contradict each other.
        """
        from store.training.execution.fleet import Fleet
        from store.training.execution.fleet_size import FleetLimits

        if self.maximum is None:
            if self.minimum is not None or self.per_runner is not None:
                raise Invalid("--max", "--min and --per-runner need --max N, the largest number of processes")
            return None
        if self.runners is not None:
            raise Invalid("--runners", "give either a fixed number of processes, or --min and --max")
        minimum = 1 if self.minimum is None else self.minimum
        if minimum > self.maximum:
            raise Invalid("--min", f"{minimum} is above --max {self.maximum}")
        return Fleet(FleetLimits(minimum, self.maximum, self.per_runner or 1), name, progress_line)

    def strategy(self, url: str) -> ClientServerExecutionStrategy | RayExecutionStrategy:
        """Return the strategy that runs the processes.

        Args:
            url: the URL of the store.

        Raises:
            Invalid: nodes cannot open the store, Ray is not installed, or the options are not those of the strategy.
        """
        from store.training.execution import ClientServerExecutionStrategy, RayExecutionStrategy

        count = self.runners or 1
        if self.ray is None:
            if self.ray_options is not None:
                raise Invalid("--ray-options", "they need --ray ADDRESS")
            return ClientServerExecutionStrategy("runner", n_runners=count, graceful_timeout=self.grace)
        from store.training.execution.ray_nodes import check_shared

        check_shared(url)

        try:
            options: Any = orjson.loads(self.ray_options or "{}")
        except orjson.JSONDecodeError as error:
            raise Invalid("--ray-options", f"{self.ray_options!r} is not JSON: {error}") from error
        settings: dict[str, Any] = {"n_runners": count, "address": self.ray, "graceful_timeout": self.grace}
        try:
            inspect.signature(RayExecutionStrategy).bind(**options, **settings)
        except TypeError as error:
            raise Invalid("--ray-options", f"they do not fit RayExecutionStrategy: {error}") from error
        return RayExecutionStrategy(**options, **settings)

    def __str__(self) -> str:
        count = self.runners or 1
        text = "one process" if count == 1 else f"{count} processes"
        if self.maximum is not None:
            text = f"{1 if self.minimum is None else self.minimum} to {self.maximum} processes"
        return text if self.ray is None else f"{text} on the Ray cluster {self.ray}"
