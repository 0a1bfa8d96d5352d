"""Which certificates a client believes."""

from __future__ import annotations

import os
import ssl

from store.errors import Invalid


def trusting(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """Return a context that believes the system's authorities (or those in `SSL_CERT_FILE`), and those in a file.

    Raises:
        Invalid: the file is missing, or holds no certificates in PEM.
    """
    context = ssl.create_default_context()
    if ca_file is None:
        return context
    try:
        context.load_verify_locations(ca_file)
    except ssl.SSLError:
        raise Invalid("ca_file", f"{os.fspath(ca_file)} holds no certificates in PEM") from None
    except OSError as error:
        raise Invalid("ca_file", f"{os.fspath(ca_file)} cannot be read: {error.strerror}") from None
    return context
