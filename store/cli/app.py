"""The command-line program `rollbook`, which imports only the module of the command that is called.

The commands are declared in the modules of `store.cli.commands`. Importing all these modules would take longer than
printing the help. Therefore the names, help panels and help lines of the commands are read from the source text of the
modules.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand
from typer.main import get_group

from store.cli import configuration, interrupts
from store.cli.errors import Commands

_ORDER: Final = (
    *("show", "history", "annotate", "tail", "stats", "ui"),
    *("runs", "rerun", "lineage", "compare", "undo"),
    *("verify", "seal", "rebuild", "doctor"),
    *("backup", "restore", "copy"),
    *("demo", "migrate", "enqueue", "cancel", "retry"),
    *("store", "serve"),
    *("train", "runner", "proxy", "guess-number", "trading"),
    *("import-runs", "export-run", "mirror", "ls", "partitions", "keys"),
)
"""The order of the commands in the help. Commands that are not listed here follow in alphabetical order."""


_CONFIGURED: Final = "rollbook.configured"
_DATABASE: Final = "rollbook.database"
_VARIABLE: Final = "ROLLBOOK_DB"


class _Declared(TyperCommand):
    """A placeholder for a command whose module is not imported yet. The placeholder provides the name and help line."""

    def __init__(self, module: str, name: str, **attributes: Any) -> None:
        super().__init__(name, **attributes)
        self.module = module


class Program(Commands):
    """The commands of all modules of `store.cli.commands`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # The base class sets this attribute. Without it, the property below applies.
        del self.commands

    @cached_property
    def commands(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All commands by name, in the order of the help. This reads all modules; `get_command` reads only one."""
        order = {name: index for index, name in enumerate(_ORDER)}
        placeholders = _all_declared()
        return {
            name: placeholders[name]
            for name in sorted(placeholders, key=lambda name: (order.get(name, len(order)), name))
        }

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name, or None if there is no such command."""
        del ctx
        return _declared_as(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the module of the called command, and return the command."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and isinstance(command, _Declared):
            command = get_group(import_module(command.module).app).commands[name]
        interrupts.raise_exception()
        if name is not None and command is not None and (db := ctx.meta.get(_DATABASE)) is not None:
            _use(ctx, name, command, db)
        if name is not None and command is not None:
            # Options of commands have environment variables. Options of the program itself have none.
            ctx.auto_envvar_prefix = "ROLLBOOK"
            _hide_variables(command)
            if (configured := ctx.meta.get(_CONFIGURED)) is not None:
                content, file = configured
                ctx.default_map = {name: configuration.defaults(content, self.commands, name, command, file)}
        return name, command, rest


@cache
def _all_declared() -> dict[str, _Declared]:
    """Return placeholders for the commands of all modules, by the names of the commands.

    The result is cached, because tests run many commands in one process.
    """
    return {command.name or "": command for path in _modules() for command in _declared(path)}


@cache
def _declared_as(name: str) -> _Declared | None:
    """Return the placeholder for the command with this name, after parsing only the modules that contain the name."""
    declarations = f'"{name}"'.encode(), f"def {name.replace('-', '_')}(".encode()
    for path in _modules():
        source = path.read_bytes()
        if any(text in source for text in declarations):
            for command in _declared(path):
                if command.name == name:
                    return command
    return None


def _modules() -> Iterable[Path]:
    folder = Path(__file__).with_name("commands")
    return [*folder.glob("*.py"), *folder.glob("*/__init__.py")]


def _declared(path: Path) -> Iterator[_Declared]:
    """Yield a placeholder for each command that a module declares.

    A command is a function that is decorated with `@app.command(…)`, or a group that `typer.Typer(name=…)` makes.
    """
    module = f"{__package__}.commands.{path.parent.name if path.stem == '__init__' else path.stem}"
    for node in ast.parse(path.read_bytes()).body:
        match node:
            case ast.FunctionDef():
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "app.command":
                        name = ast.literal_eval(call.args[0]) if call.args else node.name.replace("_", "-")
                        yield _Declared(module, name, help=ast.get_docstring(node), **_keywords(call))
            case ast.Assign(value=ast.Call(keywords=[ast.keyword(arg="name"), *_]) as call):
                yield _Declared(module, **_keywords(call))
            case _:
                pass


def _keywords(call: ast.Call) -> dict[str, Any]:
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg is not None}


app = typer.Typer(
    cls=Program,
    help="The rollout store of a training run: inspect its contents and history, and verify them.",
    epilog="Exit codes: 0 ok, 1 error, 2 usage, 3 the database does not match its log, 4 unavailable, 5 not found.",
    no_args_is_help=True,
    # If a bug raises an exception, Python prints the traceback. Typer's own traceback would also contain the values of
    # all variables.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _hide_variables(command: Any) -> None:
    """Hide the environment variables of options in the help, except variables whose names are declared.

    The names of the other variables follow from the names of their options.
    """
    for param in command.params:
        if param.param_type_name == "option" and param.envvar is None:
            param.show_envvar = False
    for nested in getattr(command, "commands", {}).values():
        _hide_variables(nested)


def _use(ctx: typer.Context, name: str, command: Any, db: str) -> None:
    """Use the value of `--db` before the name of the command as the default of the command's `--db`."""
    nested: dict[str, Any] = getattr(command, "commands", {})
    if not any(param.name == "db" for owner in (command, *nested.values()) for param in owner.params):
        raise typer.BadParameter(f"{name} has no option --db; see: rollbook {name} --help", param_hint="--db")
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = db
    # Tests run many commands in one process.
    ctx.call_on_close(lambda: os.environ.pop(_VARIABLE) if before is None else os.environ.update({_VARIABLE: before}))


def _remember_database(ctx: typer.Context, db: str | None) -> None:
    if db is not None:
        ctx.meta[_DATABASE] = db


def _configure(ctx: typer.Context, file: Path | None) -> None:
    # This runs before the arguments of the command are parsed. Secrets are read first, because options use them.
    configuration.read_secrets()
    if file is not None:
        ctx.meta[_CONFIGURED] = configuration.read_file(file), str(file)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib import metadata

        typer.echo(f"rollbook {metadata.version('rollbook')}")
        raise typer.Exit


@app.callback()
def rollbook(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="ROLLBOOK_CONFIG",
            callback=_configure,
            is_eager=True,
            metavar="FILE",
            help="Read options from this TOML file: db, and a table of options for each command.",
        ),
    ] = None,
    db: Annotated[
        str | None,
        typer.Option(callback=_remember_database, metavar="URL", help="The store, for every command with --db."),
    ] = None,
) -> None:
    del version, config, db
