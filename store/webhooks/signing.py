"""Signatures of messages by the Standard Webhooks specification, version 1.0.0."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Final

_PREFIX: Final = "whsec_"


def new_secret() -> str:
    """Return a new secret of 32 random bytes, in the form `whsec_` and base64."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def signed_headers(secret: str, message_id: str, at: int, body: bytes) -> dict[str, str]:
    """Return the headers of one attempt to deliver a message.

    Args:
        secret: the secret of the webhook.
        message_id: the id of the message, which is equal in all attempts.
        at: the time of the attempt in seconds since the epoch. Receivers refuse old times.
        body: the body of the request.
    """
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    signature = hmac.digest(key, b"%s.%d.%s" % (message_id.encode(), at, body), hashlib.sha256)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }
