"""What the environment says of how a training is run; arguments outrank it, and it outranks the defaults."""

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
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})


def role(given: str | None) -> Role:
    """Return which side this process is: as given, else `AGL_CURRENT_ROLE`, else both.

    Raises:
        Invalid: it is none of the three.
    """
    name = "role" if given is not None else ROLE
    said = (given if given is not None else os.environ.get(ROLE, "both")).strip().lower()
    if said not in _ROLES:
        raise Invalid(name, f"{said!r} is none of {', '.join(_ROLES)}")
    return said


def host(given: str | None) -> str:
    """Return where the server listens: as given, else `AGL_SERVER_HOST`, else localhost."""
    return given or os.environ.get(HOST) or "localhost"


def port(given: int | None) -> int:
    """Return the server's port: as given, else `AGL_SERVER_PORT`, else 4747.

    Raises:
        Invalid: the variable is no number of a port.
    """
    if given is not None:
        return given
    said = os.environ.get(PORT) or str(_PORT)
    if not said.isascii() or not said.isdigit() or int(said) > 65_535:
        raise Invalid(PORT, f"{said!r} is no port")
    return int(said)


def managed(given: bool | None) -> bool:  # noqa: FBT001 - the only argument
    """Return whether the strategy serves the store itself: as given, else `AGL_MANAGED_STORE`, else yes.

    Raises:
        Invalid: the variable says neither yes nor no.
    """
    if given is not None:
        return given
    said = os.environ.get(MANAGED, "true").strip().lower()
    if said not in _YES | _NO:
        raise Invalid(MANAGED, f"{said!r} is neither yes (1, true, yes, on) nor no (0, false, no, off)")
    return said in _YES
