"""Operations on whole stores: the removal of payload by a policy."""

from store.operations.policy import RetentionPolicy
from store.operations.retention import RetentionReport, remove_payload

__all__ = ["RetentionPolicy", "RetentionReport", "remove_payload"]
