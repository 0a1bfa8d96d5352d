"""Diagnosis of a store and of this machine: many cheap checks, which only read and which propose remedies.

`run.CHECKS` lists all checks. A check is a function that takes a `Target` and returns a `Verdict`.
"""

from store.operations.doctor.results import CheckResult, Diagnosis
from store.operations.doctor.run import diagnose

__all__ = ["CheckResult", "Diagnosis", "diagnose"]
