# SPDX-License-Identifier: BSD-3-Clause
"""The slots of a node's GPUs: their health, and the best ones for a container. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

#: How to place several slots of one container: on as few GPUs as possible, or on as many as possible.
Several = Literal["together", "apart"]

#: Separates a GPU's UUID from the slot's number. The kubelet accepts identifiers of up to 63 characters; UUIDs have 40.
_BETWEEN = "::"


class UnknownSlot(Exception):
    """The kubelet named a slot that was not offered; the message names it."""


class Slots:
    """The slots of all GPUs that have been seen.

    Parameters
    ----------
    per_gpu
        Number of slots of each GPU.
    several
        How to place several slots of one container.
    """

    def __init__(self, per_gpu: int, several: Several = "together") -> None:
        self._per_gpu = per_gpu
        self._several = several
        self._healthy: dict[str, bool] = {}

    def update(self, known: Iterable[str], usable: Collection[str]) -> dict[str, bool]:
        """Update the known GPUs and their health. A GPU that was seen once stays known.

        Returns
        -------
        dict
            The GPUs that are new or whose health changed, and whether each is healthy now.
        """
        now = {gpu: gpu in usable for gpu in (*self._healthy, *known)}
        changed = {gpu: well for gpu, well in now.items() if self._healthy.get(gpu) is not well}
        self._healthy = now
        return changed

    def offered(self) -> list[tuple[str, bool]]:
        """Return each slot's identifier, and whether it is healthy."""
        return [
            (f"{gpu}{_BETWEEN}{number}", well)
            for gpu, well in self._healthy.items()
            for number in range(self._per_gpu)
        ]

    def gpus(self, slots: Iterable[str]) -> list[str]:
        """Return the GPUs of some slots, each once, in the order in which the GPUs were found.

        Raises
        ------
        UnknownSlot
            If one of the slots is not offered.
        """
        named = {self._gpu(slot) for slot in slots}
        return [gpu for gpu in self._healthy if gpu in named]

    def preferred(self, free: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Choose slots for one container.

        The GPU with the most free slots comes first, so that containers spread over the GPUs.

        Parameters
        ----------
        free
            The slots to choose from.
        must
            Slots that have to be among the chosen ones.
        size
            Number of slots, including those of ``must``.

        Returns
        -------
        list of str
            The chosen slots; fewer than ``size`` if there are not enough.

        Raises
        ------
        UnknownSlot
            If one of the slots is not offered.
        """
        chosen = list(dict.fromkeys(must))
        held = Counter(self._gpu(slot) for slot in chosen)
        rest: dict[str, list[str]] = {gpu: [] for gpu in self._healthy}
        for slot in dict.fromkeys(free):
            gpu = self._gpu(slot)
            if slot not in chosen:
                rest[gpu].append(slot)
        while len(chosen) < size and (left := [gpu for gpu in rest if rest[gpu]]):
            gpu = min(left, key=lambda gpu: self._rank(held[gpu], len(rest[gpu])))
            chosen.append(rest[gpu].pop(0))
            held[gpu] += 1
        return chosen

    def _rank(self, held: int, free: int) -> tuple[int, int]:
        return (-held if self._several == "together" else held, -free)

    def _gpu(self, slot: str) -> str:
        gpu, between, number = slot.rpartition(_BETWEEN)
        if gpu in self._healthy and between and number.isdecimal() and int(number) < self._per_gpu:
            return gpu
        raise UnknownSlot(f"{slot!r} is not a slot of this node")
