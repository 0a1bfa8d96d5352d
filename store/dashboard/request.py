"""A request for a page: the store, the visitor, the parameters, and functions that make links.

Every page is also available as JSON; this JSON version is the twin of the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from store.errors import Invalid
from store.models.missing_rewards import MissingReward
from store.sql.api_keys import ROLES, Role
from store.sql.store import SQLStore
from store.validation.scores import VersionKey, version_key

ROWS: Final = 50
"""The default number of rows in a table."""
MOST_ROWS: Final = 500


@dataclass(frozen=True, slots=True)
class Visitor:
    """The user of the dashboard."""

    role: Role = "admin"
    """The role of the visitor's API key; admin if the server requires no key."""
    actor: str = "dashboard"
    """The visitor's name in the log: `key:<id>`, or `dashboard` if the server requires no key."""
    has_key: bool = False
    """Whether the visitor uses an API key."""

    def may(self, role: Role) -> bool:
        """Return whether the visitor has the permissions of `role`."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page."""

    store: SQLStore
    base: str
    """The path prefix of this partition: empty for the partition that is served at `/`, otherwise `/p/<name>`."""
    partition: str
    path: str
    """The path of the page without the prefix `base` and without `.json`, percent-encoded."""
    ids: Mapping[str, str]
    """The ids in the path, by their names in the path template of the page."""
    params: Mapping[str, Sequence[str]]
    """The query parameters, or the form fields of an action."""
    visitor: Visitor
    is_read_only: bool = False
    partitions: Sequence[str] = ()
    """The open partitions that this visitor may read."""
    theme: str = "auto"
    """The theme that the visitor has chosen; `auto` for the theme of the browser."""
    is_twin: bool = False
    """Whether the JSON twin is requested. The twin contains all data, also data that the HTML page loads later."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further values that the server provides, such as `keys_url` and `scheduler`."""

    def one(self, name: str, default: str = "") -> str:
        """Return the value of a parameter: the last value if it is repeated, and `default` if it is missing."""
        values = self.params.get(name)
        return values[-1] if values else default

    def several(self, name: str) -> list[str]:
        """Return all values of a parameter that are not empty."""
        return [value for value in self.params.get(name, ()) if value]

    def whole(self, name: str, default: int, *, least: int = 0, most: int = 2**53) -> int:
        """Return the value of a parameter that must be an integer, or `default` if the parameter is missing.

        Raises:
            Invalid: the value is not an integer, or is not between `least` and `most`.
        """
        number = self.maybe_whole(name, least=least, most=most)
        return default if number is None else number

    def maybe_whole(self, name: str, *, least: int = 0, most: int = 2**53) -> int | None:
        """Return a parameter as `whole` does, or None if it is missing."""
        text = self.one(name)
        if not text:
            return None
        try:
            number = int(text)
        except ValueError:
            raise Invalid(name, f"{text[:80]!r} is not an integer") from None
        if not least <= number <= most:
            raise Invalid(name, f"must lie between {least} and {most}")
        return number

    def among(self, name: str, allowed: Sequence[str], default: str) -> str:
        """Return the value of a parameter, which must be one of the allowed values.

        Raises:
            Invalid: the value is not allowed.
        """
        return _allowed(name, self.one(name, default), allowed)

    def several_among(self, name: str, allowed: Sequence[str]) -> list[str]:
        """Return the distinct values of a parameter, which must all be allowed.

        Raises:
            Invalid: a value is not allowed.
        """
        return [_allowed(name, value, allowed) for value in dict.fromkeys(self.several(name))]

    def reward_version(self) -> VersionKey | None:
        """Return the parameter `reward_version`, such as `helpful@v2`; None if it is missing.

        Raises:
            Invalid: the value has another form.
        """
        text = self.one("reward_version")
        return version_key(text) if text else None

    def missing_reward(self) -> MissingReward:
        """Return how ended rollouts without a reward count: the parameter `unrewarded`, such as `out` or `failed:0`.

        Raises:
            Invalid: the value has another form.
        """
        return MissingReward.parse(self.one("unrewarded"))

    @property
    def rows(self) -> int:
        """The number of rows to show in a table."""
        return self.whole("limit", ROWS, least=1, most=MOST_ROWS)

    def url(self, *segments: str, **params: Any) -> str:
        """Return the path of a page, for example `url("rollouts", rollout_id, at=3)`.

        Parameters that are None or empty are omitted.
        """
        path = "/".join(map(segment, segments))
        return f"{self.base}/ui/{path}{_query(params)}"

    def here(self, **changed: Any) -> str:
        """Return the path of this page with some parameters changed. Parameters that are None or empty are removed."""
        params: dict[str, Any] = {name: list(values) for name, values in self.params.items()}
        return f"{self._address}{_query(params | changed)}"

    @property
    def twin(self) -> str:
        """The path of the JSON twin of this page."""
        params = {name: list(values) for name, values in self.params.items()}
        path = self._address
        return f"{path}overview.json{_query(params)}" if path.endswith("/ui/") else f"{path}.json{_query(params)}"

    @property
    def _address(self) -> str:
        # Browsers do not encode a single quote. Pages show commands with a quoted URL, which the quote would end.
        return f"{self.base}{self.path}".replace("'", "%27")

    def may(self, role: Role) -> bool:
        """Return whether the page offers this visitor actions that require `role`; a read-only page offers none."""
        return not self.is_read_only and self.visitor.may(role)


def _allowed(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise Invalid(name, f"must be one of {', '.join(filter(None, allowed))}")
    return value


def segment(text: str) -> str:
    """Return a text encoded as one segment of a path.

    If the text ends with `.json`, this dot is encoded too, because a path that ends with `.json` requests a JSON twin.
    """
    quoted = quote(text, safe="")
    return f"{quoted[: -len('.json')]}%2Ejson" if quoted.endswith(".json") else quoted


def _query(params: Mapping[str, Any]) -> str:
    present = {name: value for name, value in params.items() if value is not None and value not in ("", [])}
    return f"?{urlencode(present, doseq=True)}" if present else ""
