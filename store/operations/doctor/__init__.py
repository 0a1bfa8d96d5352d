"""Diagnosis of a store and of this machine: many cheap checks that only read, each with a remedy.

`run.CHECKS` lists all checks. Each is a function from a `Target` to what it found.
"""

from store.operations.doctor.results import CheckResult, Diagnosis
from store.operations.doctor.run import diagnose

__all__ = ["CheckResult", "Diagnosis", "diagnose"]
