"""What a page is asked for: of which store, by whom, with which parameters, and where its links lead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from store.errors import Invalid
from store.sql.api_keys import ROLES, Role
from store.sql.store import SQLStore

ROWS: Final = 50
"""How many rows a page of a table has, unless asked otherwise."""
MOST_ROWS: Final = 500


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks."""

    role: Role = "admin"
    """What their key lets them do; where no key is needed, everything."""
    actor: str = "dashboard"
    """As the log names them: `key:<id>`, or `dashboard` where no key is needed."""
    has_key: bool = False

    def may(self, role: Role) -> bool:
        """Say whether they may do what asks for a role."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page."""

    store: SQLStore
    base: str
    """What the paths of this partition begin with: empty at the root, else `/p/<name>`."""
    partition: str
    path: str
    """Of the page, below the base, percent-encoded and without `.json`."""
    ids: Mapping[str, str]
    """The ids in the path."""
    params: Mapping[str, Sequence[str]]
    """The query parameters; of an action the fields of its form."""
    visitor: Visitor
    is_read_only: bool = False
    partitions: Sequence[str] = ()
    """Those that can be looked at by this visitor, as far as they are open."""
    theme: str = "auto"
    is_twin: bool = False
    """Its JSON is asked for, which has all of it at once."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    # -- parameters --------------------------------------------------------------------------------------------------

    def one(self, name: str, default: str = "") -> str:
        """Return a parameter; of one that is repeated the last."""
        given = self.params.get(name)
        return given[-1] if given else default

    def several(self, name: str) -> list[str]:
        """Return all values of a parameter that say something."""
        return [value for value in self.params.get(name, ()) if value]

    def whole(self, name: str, default: int, *, least: int = 0, most: int = 2**53) -> int:
        """Return a parameter that is a whole number.

        Raises:
            Invalid: it is none, or not between the bounds.
        """
        found = self.maybe_whole(name, least=least, most=most)
        return default if found is None else found

    def maybe_whole(self, name: str, *, least: int = 0, most: int = 2**53) -> int | None:
        """As `whole`; None where it was not given."""
        text = self.one(name)
        if not text:
            return None
        try:
            number = int(text)
        except ValueError:
            raise Invalid(name, f"{text[:80]!r} is no whole number") from None
        if not least <= number <= most:
            raise Invalid(name, f"must lie between {least} and {most}")
        return number

    def among(self, name: str, allowed: Sequence[str], default: str) -> str:
        """Return a parameter that is one of a few words.

        Raises:
            Invalid: it is another one.
        """
        return _allowed(name, self.one(name, default), allowed)

    def several_among(self, name: str, allowed: Sequence[str]) -> list[str]:
        """Return the values of a parameter, each once, that are of a few words.

        Raises:
            Invalid: one is another word.
        """
        return [_allowed(name, given, allowed) for given in dict.fromkeys(self.several(name))]

    @property
    def rows(self) -> int:
        """How many rows of a table are wanted."""
        return self.whole("limit", ROWS, least=1, most=MOST_ROWS)

    # -- links -------------------------------------------------------------------------------------------------------

    def url(self, *segments: str, **params: Any) -> str:
        """Return the path of a page: `url("rollouts", rollout_id, at=3)`; parameters of None are left out."""
        path = "/".join(map(segment, segments))
        return f"{self.base}/ui/{path}{_query(params)}"

    def here(self, **changed: Any) -> str:
        """Return this page with some parameters changed, or left out where they are None."""
        params: dict[str, Any] = {name: list(values) for name, values in self.params.items()}
        return f"{self._address}{_query(params | changed)}"

    @property
    def twin(self) -> str:
        """The path of the same page as JSON."""
        params = {name: list(values) for name, values in self.params.items()}
        path = self._address
        return f"{path}overview.json{_query(params)}" if path.endswith("/ui/") else f"{path}.json{_query(params)}"

    @property
    def _address(self) -> str:
        # Browsers leave this mark as it is, and within a command to copy it would end what it is quoted by.
        return f"{self.base}{self.path}".replace("'", "%27")

    def may(self, role: Role) -> bool:
        """Say whether an action that asks for a role is offered."""
        return not self.is_read_only and self.visitor.may(role)


def _allowed(name: str, given: str, allowed: Sequence[str]) -> str:
    if given not in allowed:
        raise Invalid(name, f"must be one of {', '.join(allowed)}")
    return given


def segment(text: str) -> str:
    """Return a text as one segment of a path; an id that ends like a page's twin is told from it."""
    quoted = quote(text, safe="")
    return f"{quoted[: -len('.json')]}%2Ejson" if quoted.endswith(".json") else quoted


def _query(params: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in params.items() if value is not None and value not in ("", [])}
    return f"?{urlencode(kept, doseq=True)}" if kept else ""
