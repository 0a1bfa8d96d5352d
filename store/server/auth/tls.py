"""The certificate of a server, which is checked before the server starts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from store.errors import Invalid


@dataclass(frozen=True, slots=True)
class Certificate:
    """The PEM files of a certificate and of its private key."""

    cert: Path
    """The certificate, followed by the intermediate certificates."""
    key: Path

    def check(self) -> None:
        """Check that a server can use the certificate and the key.

        Raises:
            Invalid: a file is missing, cannot be read, or contains something else; the key is encrypted, or belongs to
                another certificate.
        """
        for option, path in (("--tls-cert", self.cert), ("--tls-key", self.key)):
            try:
                with path.open("rb"):
                    pass
            except OSError as error:
                raise Invalid(option, f"{path} cannot be read: {error.strerror}") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Without this function, OpenSSL would ask for the password on the terminal.
            context.load_cert_chain(self.cert, self.key, password=self._refuse_password)
        except ssl.SSLError as error:
            raise self._fault(error) from None

    def _refuse_password(self) -> str:
        raise Invalid(
            "--tls-key",
            f"{self.key} is encrypted, and a server cannot ask for its password; write the key without one:"
            " openssl pkey -in KEY -out PLAIN",
        )

    def _fault(self, error: ssl.SSLError) -> Invalid:
        if error.reason == "KEY_VALUES_MISMATCH":
            return Invalid("--tls-key", f"{self.key} is not the key of the certificate in {self.cert}")
        if not _holds(self.cert, b"CERTIFICATE"):
            return Invalid("--tls-cert", f"{self.cert} does not contain a certificate in PEM")
        if not _holds(self.key, b"PRIVATE KEY"):
            return Invalid("--tls-key", f"{self.key} does not contain a private key in PEM")
        return Invalid("--tls-cert", f"{self.cert} and {self.key} cannot be used: {error.reason or error}")


def _holds(path: Path, label: bytes) -> bool:
    return b"-----BEGIN " in (text := path.read_bytes()) and label + b"-----" in text
