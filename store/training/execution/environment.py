"""Settings of a training. An argument overrides the environment variable, and the variable overrides the default."""

from __future__ import annotations

import os
from typing import Final, Literal

from store.errors import Invalid

Role = Literal["algorithm", "runner", "both"]

ROLE: Final = "AGL_CURRENT_ROLE"
HOST: Final = "AGL_SERVER_HOST"
PORT: Final = "AGL_SERVER_PORT"
MANAGED: Final = "AGL_MANAGED_STORE"

_ROLES: Final = ("algorithm", "runner", "both")
_PORT: Final = 4747
"""The port at which runners on other machines look for the server by default."""
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})


def role(argument: str | None) -> Role:
    """Return the role of this process: the argument, or else `AGL_CURRENT_ROLE`, or else both.

    Raises:
        Invalid: the value is not one of the three roles.
    """
    name = "role" if argument is not None else ROLE
    value = (argument if argument is not None else os.environ.get(ROLE, "both")).strip().lower()
    if value not in _ROLES:
        raise Invalid(name, f"{value!r} is not one of {', '.join(_ROLES)}")
    return value


def host(argument: str | None) -> str:
    """Return the host of the server: the argument, or else `AGL_SERVER_HOST`, or else localhost."""
    return argument or os.environ.get(HOST) or "localhost"


def port(argument: int | None, role: Role) -> int:
    """Return the port of the server: the argument, or else `AGL_SERVER_PORT`, or else a default.

    The default is 0, any free port, if all parts run on this machine, and otherwise 4747.

    Raises:
        Invalid: the variable is not a port number.
    """
    if argument is not None:
        return argument
    value = os.environ.get(PORT) or str(0 if role == "both" else _PORT)
    if not value.isascii() or not value.isdigit() or int(value) > 65_535:
        raise Invalid(PORT, f"{value!r} is not a port number")
    return int(value)


def managed(argument: bool | None) -> bool:  # noqa: FBT001 - the only argument
    """Return whether the strategy starts a server: the argument, or else `AGL_MANAGED_STORE`, or else True.

    Raises:
        Invalid: the variable is neither yes nor no.
    """
    if argument is not None:
        return argument
    value = os.environ.get(MANAGED, "true").strip().lower()
    if value not in _YES | _NO:
        raise Invalid(MANAGED, f"{value!r} is neither yes (1, true, yes, on) nor no (0, false, no, off)")
    return value in _YES
