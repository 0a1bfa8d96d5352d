from store.scanning.detector import Detector as Detector, function_definition as function_definition
from store.scanning.scanner_run import ScanReport as ScanReport, scan as scan
