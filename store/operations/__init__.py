"""Operations on whole stores: the removal of payload by a policy, and of single events by hand."""

from store.operations.policy import RetentionPolicy
from store.operations.redaction import Redaction, RedactionReport, redact
from store.operations.retention import RetentionReport, remove_payload

__all__ = ["Redaction", "RedactionReport", "RetentionPolicy", "RetentionReport", "redact", "remove_payload"]
