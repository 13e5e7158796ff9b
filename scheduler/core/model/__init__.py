# SPDX-License-Identifier: BSD-3-Clause
"""What the core knows: its entities, their records, and the object that holds them all."""

from .entities import Client, Gpu, Group, Holding, Share, Wait
from .records import (
    LEFT,
    WAITED_FOR,
    Bar,
    BurstTime,
    ContextSizes,
    Delayed,
    Departures,
    Hibernation,
    LeaseState,
    Obstacle,
    Progress,
    Stage,
    Totals,
    Trial,
    Unfit,
    Wishes,
)
from .state import Model, excess, growth, is_managed, staying, staying_contexts

__all__ = [
    "LEFT",
    "WAITED_FOR",
    "Bar",
    "BurstTime",
    "Client",
    "ContextSizes",
    "Delayed",
    "Departures",
    "Gpu",
    "Group",
    "Hibernation",
    "Holding",
    "LeaseState",
    "Model",
    "Obstacle",
    "Progress",
    "Share",
    "Stage",
    "Totals",
    "Trial",
    "Unfit",
    "Wait",
    "Wishes",
    "excess",
    "growth",
    "is_managed",
    "staying",
    "staying_contexts",
]
