from store.scanning.detector import Detector as Detector, function_definition as function_definition
