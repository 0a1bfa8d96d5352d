"""The commands that add scanners and record their results, made from arguments that are checked and encoded."""

from __future__ import annotations

from store.domain.events import RolloutScanned, ScannerAdded
from store.domain.scanners import AddScanner, RecordScans, ScanItem
from store.models.calls import AddScannerCall, RecordScansCall
from store.models.scanners import NewScan
from store.validation import scanners
from store.validation.json_limits import body_of, canonical_sha256, check_call


def add(call: AddScannerCall) -> AddScanner:
    """Return the command that adds a version of a scanner.

    Raises:
        Invalid, TooLarge: see `StoreScanners.add`.
    """
    scanner = scanners.check_scanner(call.scanner)
    fact = ScannerAdded(
        name=scanner.name,
        version=scanner.version,
        kind=scanner.kind,
        sha256=canonical_sha256(scanner.definition),
        match_label=scanner.match_label,
        clear_label=scanner.clear_label,
    )
    return AddScanner(fact=fact, body=body_of({"definition": scanner.definition}))


def record(call: RecordScansCall) -> RecordScans:
    """Return the command that records results.

    Raises:
        Invalid, TooLarge: see `StoreScanners.record`.
    """
    checked = scanners.check_scans(call.name, call.version, call.scans)
    items = [_item(call.name, call.version, scan) for scan in checked]
    command = RecordScans(name=call.name, version=call.version, items=items)
    check_call(len(command.items), command.size, "scans")
    return command


def _item(name: str, version: str, scan: NewScan) -> ScanItem:
    error = None if scan.error is None else scan.error.type
    fact = RolloutScanned(scan.attempt_id, name, version, scan.is_match, error)
    texts = {"explanation": scan.explanation, "message": None if scan.error is None else scan.error.message}
    payload = {field: text for field, text in texts.items() if text is not None}
    return ScanItem(scan.rollout_id, fact, body_of(payload) if payload else None)
