# SPDX-License-Identifier: BSD-3-Clause
"""What use costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

#: Seconds in an hour, byte-seconds in a GiB-hour, and joules in a kilowatt-hour.
HOUR = 3600
GIB_HOUR = HOUR << 30
KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Prices:
    """What an hour of a GPU, a GiB of memory for an hour, and a kilowatt-hour cost. 0: nothing."""

    gpu_hour: float = 0.0
    gpu_gib_hour: float = 0.0
    host_gib_hour: float = 0.0
    kwh: float = 0.0
    #: Shown after amounts, such as ``EUR``.
    currency: str = ""

    @classmethod
    def parsed(cls, stated: Mapping[str, Any]) -> Prices:
        """Return the prices that a configuration states.

        Raises
        ------
        ValueError
            A name or a price is not valid; the message is a sentence.
        """
        names = [field.name for field in fields(cls)]
        for name, value in stated.items():
            if name not in names:
                raise ValueError(f"unknown price {name!r}; use {', '.join(names)}")
            if name == "currency":
                if not isinstance(value, str):
                    raise ValueError("'currency' must be text, such as 'EUR'")
            elif (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not 0 <= value < 1e9
            ):
                raise ValueError(f"{name!r} must be a number, 0 or more, not {value!r}")
        return cls(**stated)

    def __bool__(self) -> bool:
        """Whether anything has a price."""
        return bool(self.gpu_hour or self.gpu_gib_hour or self.host_gib_hour or self.kwh)

    def cost(self, row: Mapping[str, Any]) -> float:
        """Return what the use in a row of a report costs. Energy that was not measured costs nothing."""
        cost: float = (
            row["seconds"] / HOUR * self.gpu_hour
            + row["gpu_byte_seconds"] / GIB_HOUR * self.gpu_gib_hour
            + row["host_byte_seconds"] / GIB_HOUR * self.host_gib_hour
            + self.energy_cost(row["energy"])
        )
        return round(cost, 4)

    def energy_cost(self, joules: float | None) -> float:
        """Return what energy costs."""
        return (joules or 0.0) / KWH * self.kwh
