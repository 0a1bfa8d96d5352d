"""Operations on whole stores: copies, backups, removal of payload or of a partition, and a diagnosis.

A copy has the id, the log and the state of the store. The copy gets its name only when it is complete and, by default,
verified. So an incomplete copy is never used as a store, and the same call continues the copy. Payload is removed by a
policy, or from single events by hand, and the log names each removal.
"""

from __future__ import annotations

from store.runtime.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
