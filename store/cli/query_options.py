"""Options of commands that follow from the conditions of a query.

A new field of a query class in `store.models.queries` becomes an option without a change in this package.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import wraps
from inspect import Parameter
from inspect import signature as signature_of
from typing import Annotated, Any, Final, get_args

import typer
from typer.models import OptionInfo

from store.cli.options import AnyOf, IdContains, Ids, RewardVersionOption, RolloutStatuses, WorkerStatuses, parameter
from store.models import RolloutMode
from store.models.queries import PageQuery, ResourcesQuery, RolloutQuery, WorkerQuery, kind_of

_SHOW: Final = "Show"
_MODES: Final[tuple[str, ...]] = get_args(RolloutMode)


def _mode(text: str) -> str:
    if text not in _MODES:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(_MODES)}")
    return text


_NAMED_OPTIONS: Final[dict[tuple[type[PageQuery], str], Any]] = {
    (RolloutQuery, "status_in"): RolloutStatuses,
    (RolloutQuery, "rollout_id_in"): Ids,
    (RolloutQuery, "rollout_id_contains"): IdContains,
    (RolloutQuery, "mode_in"): Annotated[
        list[Any] | None,
        typer.Option(
            "--mode",
            parser=_mode,
            metavar="MODE",
            help=f"Show only rollouts with this mode, one of {', '.join(_MODES)}; may be repeated.",
        ),
    ],
    (RolloutQuery, "scan_match"): Annotated[
        str | None,
        typer.Option(
            metavar="NAME@VERSION",
            help="Show only rollouts whose latest attempt this scanner matched, such as hacks@v1.",
        ),
    ],
    (WorkerQuery, "status_in"): WorkerStatuses,
    (WorkerQuery, "worker_id_contains"): IdContains,
    (ResourcesQuery, "resources_id"): Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Show only the resources with this id.")
    ],
    (ResourcesQuery, "resources_id_contains"): IdContains,
}
"""The options whose names differ from the names of the query conditions that they set."""
_HELP: Final = {
    "trace_id": "Show only spans of this trace.",
    "span_id": "Show only spans with this id.",
    "parent_id": "Show only children of this span.",
    "name": "Show only spans with this name.",
    "group": "Show only rollouts of this group.",
    "step": "Show only rollouts of this step.",
    "plan_key": "Show only the rollout with this plan key.",
    "label": "Show only rollouts with this label.",
    "resources_version": "Show only rollouts that were given this version of their resources.",
    "reward_min": "Show only rollouts whose final reward is at least this.",
    "reward_max": "Show only rollouts whose final reward is at most this.",
}


def condition_options(query: type[PageQuery], verb: str = _SHOW) -> list[Parameter]:
    """Return an option for each condition of a query, and those for the version of rewards and for joining by `or`.

    Args:
        query: the class of the query.
        verb: the first word of the help of each option: what the command does with the objects.
    """
    options = [
        parameter(name, _NAMED_OPTIONS.get((query, name)) or _condition(query, name)) for name in query.conditions()
    ]
    if "reward_version" in query.model_fields:
        options.append(parameter("reward_version", RewardVersionOption))
    if "filter_logic" in query.model_fields:
        options.append(parameter("any_of", AnyOf, default=False))
    return options if verb == _SHOW else [_with_verb(option, verb) for option in options]


def conditions_in(options: dict[str, Any], query: type[PageQuery]) -> dict[str, Any]:
    """Return the fields of a query that the values of `condition_options` set."""
    # An option that can be repeated is an empty list if it is not given.
    fields = {name: None if options[name] == [] else options[name] for name in query.conditions()}
    if options.get("reward_version"):
        fields["reward_version"] = options["reward_version"]
    return fields | ({"filter_logic": "or"} if options.get("any_of") else {})


def with_conditions(verb: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of `rollbook ls rollouts` instead of its parameter `query`.

    Args:
        verb: the first word of the help of each option.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = signature_of(command, eval_str=True)
        conditions = condition_options(RolloutQuery, verb)
        parameters = [option for name, option in signature.parameters.items() if name != "query"]

        @wraps(command)
        def expanded(**options: Any) -> None:
            fields = conditions_in(options, RolloutQuery)
            for condition in conditions:
                del options[condition.name]
            command(query=RolloutQuery.of(**fields), **options)

        # Typer reads the options from the signature.
        vars(expanded)["__signature__"] = signature.replace(parameters=[*parameters, *conditions])
        return expanded

    return decorate


def _with_verb(option: Parameter, verb: str) -> Parameter:
    kind, declared = get_args(option.annotation)
    renamed: OptionInfo = copy(declared)
    renamed.help = (renamed.help or "").replace(f"{_SHOW} ", f"{verb} ", 1)
    return option.replace(annotation=Annotated[kind, renamed])


def _condition(query: type[PageQuery], name: str) -> Any:
    """Return the option for a condition, for example `--trace-id` for `trace_id`.

    The option can be repeated if the condition is a list.
    """
    field = name.removesuffix("_in")
    metavar = "ID" if field.endswith("_id") else "TEXT"
    flag, repeated = f"--{field.replace('_', '-')}", f"{_HELP.get(field, '')} May be repeated.".strip()
    match kind_of(query, name):
        case "texts":
            return Annotated[list[str] | None, typer.Option(flag, metavar=metavar, help=repeated)]
        case "integers":
            return Annotated[list[int] | None, typer.Option(flag, metavar="N", help=repeated)]
        case "number":
            return Annotated[float | None, typer.Option(metavar="NUMBER", help=_HELP.get(name))]
        case "text":
            return Annotated[str | None, typer.Option(metavar=metavar, help=_HELP.get(name))]
