"""The package by its second name, as code for older versions imports it."""

from typing import assert_type

import rollbook

import store as agl
from store.training import Trainer


def trained(opened: agl.Store, trainer: Trainer) -> rollbook.Store:
    assert_type(opened, rollbook.Store)
    print(trainer, agl.__version__)
    return opened
