"""Options of commands that come from a configuration file, the environment or secret files.

The command line takes precedence over the environment, and the environment takes precedence over the file. Each option
has the environment variable `ROLLBOOK_<COMMAND>_<OPTION>`. The file is TOML. `db` at the top level applies to every
command. The table of a command, such as `[serve]` or `[keys.create]`, contains the options of that command.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import typer

SECRETS: Final = ("ROLLBOOK_DB", "ROLLBOOK_API_KEY")
"""The variables that may contain a secret. `<NAME>_FILE` names a file that contains the value."""

_EVERYWHERE: Final = "db"


def read_secrets() -> None:
    """Read secrets from files.

    If the variable `<NAME>_FILE` names a file, the variable `<NAME>` is set to the content of the file.

    Raises:
        typer.BadParameter: the file cannot be read or is empty, or both variables are set.
    """
    for name in SECRETS:
        file = os.environ.pop(f"{name}_FILE", "")
        if not file:
            continue
        if os.environ.get(name):
            raise typer.BadParameter(f"{name} and {name}_FILE are both set; set one of them")
        try:
            value = Path(file).read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"{name}_FILE: {file} cannot be read: {error}") from None
        if not value:
            raise typer.BadParameter(f"{name}_FILE: {file} is empty")
        os.environ[name] = value


def read_file(path: Path) -> dict[str, Any]:
    """Return the content of a configuration file.

    Raises:
        typer.BadParameter: the file cannot be read, or is not TOML.
    """
    # Most commands read no file, and this import takes some milliseconds.
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} is not TOML: {error}") from None


def defaults(
    content: Mapping[str, Any], commands: Mapping[str, Any], name: str, command: Any, file: str
) -> dict[str, Any]:
    """Return the defaults of the options of one command from a configuration file, by parameter name.

    For a group of commands, the result contains the defaults of each of its commands, by command name.

    Args:
        content: the content of the file.
        commands: all commands, by name.
        name: the name of the command.
        command: the command, or the group of commands.
        file: the name of the file, for errors.

    Raises:
        typer.BadParameter: the file names an unknown option or command, or the entry of a command is not a table.
    """
    unknown = sorted(content.keys() - commands.keys() - {_EVERYWHERE})
    if unknown:
        raise typer.BadParameter(
            f"{file}: {unknown[0]} is not known; the top level has db, and a table for each command, such as [serve]"
        )
    return _defaults(content.get(name, {}), content.get(_EVERYWHERE), (name,), command, file)


def _defaults(table: Any, db: Any, path: tuple[str, ...], command: Any, file: str) -> dict[str, Any]:
    table_name = f"[{'.'.join(path)}]"
    if not isinstance(table, Mapping):
        raise typer.BadParameter(f"{file}: {path[-1]} must be a table: {table_name}")
    entries = cast("Mapping[str, Any]", table)
    nested: Mapping[str, Any] = getattr(command, "commands", {})
    options = {} if nested else _options(command)
    unknown = sorted(entries.keys() - nested.keys() - options.keys())
    if unknown:
        names = ", ".join(sorted({*nested, *options}))
        raise typer.BadParameter(f"{file}: {table_name} has no option {unknown[0]!r} (known: {names})")
    if nested:
        return {
            name: _defaults(entries.get(name, {}), db, (*path, name), subcommand, file)
            for name, subcommand in nested.items()
        }
    values = {_EVERYWHERE: db} if db is not None and _EVERYWHERE in options else {}
    return {options[name]: _as_text(value) for name, value in {**values, **entries}.items()}


def _options(command: Any) -> dict[str, str]:
    """Return the parameter name of each option of a command. The keys are the options without the leading dashes."""
    return {
        option.removeprefix("--"): param.name
        for param in command.params
        if param.param_type_name == "option" and not param.is_eager
        for option in param.opts
        if option.startswith("--")
    }


def _as_text(value: Any) -> Any:
    """Return a value as text, in the form of the command line. A boolean is returned unchanged."""
    if isinstance(value, list):
        return [_as_text(item) for item in cast("list[Any]", value)]
    return value if isinstance(value, bool) else str(value)
