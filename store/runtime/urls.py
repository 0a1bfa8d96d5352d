"""Parts that the URLs of all stores have: the scheme, the name of a partition, and passwords to hide."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from store.errors import Invalid
from store.runtime import postgres_url

PARTITION: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
DEFAULT_PARTITION: Final = "default"
SCHEME_ALIASES: Final = {"postgres": "postgresql", "sqlite3": "sqlite"}


def scheme_of(text: str) -> str:
    """Return the scheme of a URL, without the name of a driver. Aliases are replaced. Empty if there is no scheme.

    The URL may be malformed.
    """
    match = re.match(r"\s*([a-zA-Z][a-zA-Z0-9.-]*)(?:\+[a-zA-Z0-9.+-]*)?:", text)
    scheme = match[1].lower() if match else ""
    return SCHEME_ALIASES.get(scheme, scheme)


def without_passwords(text: str) -> str:
    """Return a URL, well formed or not, with `***` in place of each password and of the value of `direct`.

    If it is not clear where a password of a malformed URL ends, more than the password is replaced.
    """
    scheme, separator, rest = text.partition("://")
    if separator and scheme_of(text) == "postgresql":
        with suppress(Invalid):
            return postgres_url.split(text).redacted(scheme)
    if not separator:
        scheme, rest = "", text
    if not rest.startswith("/"):  # a URL that begins with a path contains no user
        user, _, after = rest.partition(":")
        _, at, host = after.rpartition("@")
        rest = f"{user}:***@{host}" if at else rest
    rest = re.sub(r"([?&](?:password|direct)=).*", r"\1***", rest, flags=re.DOTALL)
    return f"{scheme}{separator}{rest}"
