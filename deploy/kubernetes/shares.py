# SPDX-License-Identifier: BSD-3-Clause
"""The shares of a node's GPUs: which there are, which are healthy, and which a container had better get. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

#: How several shares of one container are chosen: of as few GPUs, or of as many, as can be.
Several = Literal["together", "apart"]

#: Between a GPU's UUID and the share's number. The kubelet takes identifiers of up to 63 characters; UUIDs have 40.
_BETWEEN = "::"


class UnknownShare(Exception):
    """The kubelet names a share that was not offered; the message says which."""


class Shares:
    """The shares of the GPUs that have been seen.

    Parameters
    ----------
    per_gpu
        How many shares each GPU has.
    several
        How several shares of one container are chosen.
    """

    def __init__(self, per_gpu: int, several: Several = "together") -> None:
        self._per_gpu = per_gpu
        self._several = several
        self._healthy: dict[str, bool] = {}

    def update(self, known: Iterable[str], usable: Collection[str]) -> dict[str, bool]:
        """Take in which GPUs there are and which of them can be used now. One that was seen once stays.

        Returns
        -------
        dict
            The GPUs that are new, or whose health changed, and whether they are healthy now.
        """
        now = {gpu: gpu in usable for gpu in (*self._healthy, *known)}
        changed = {gpu: well for gpu, well in now.items() if self._healthy.get(gpu) is not well}
        self._healthy = now
        return changed

    def offered(self) -> list[tuple[str, bool]]:
        """Each share's identifier, and whether it is healthy."""
        return [
            (f"{gpu}{_BETWEEN}{number}", well)
            for gpu, well in self._healthy.items()
            for number in range(self._per_gpu)
        ]

    def gpus(self, shares: Iterable[str]) -> list[str]:
        """The GPUs that shares belong to, each once, in the order in which they were found.

        Raises
        ------
        UnknownShare
            If one of the shares is not offered.
        """
        named = {self._gpu(share) for share in shares}
        return [gpu for gpu in self._healthy if gpu in named]

    def preferred(self, free: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Choose shares for one container.

        A GPU of which most shares are free comes first, so that containers spread over the GPUs.

        Parameters
        ----------
        free
            The shares to choose from.
        must
            Shares that have to be among the chosen.
        size
            How many are needed, with those of ``must``.

        Returns
        -------
        list of str
            As many as are needed, or as there are.

        Raises
        ------
        UnknownShare
            If one of the shares is not offered.
        """
        chosen = list(dict.fromkeys(must))
        held = Counter(self._gpu(share) for share in chosen)
        rest: dict[str, list[str]] = {gpu: [] for gpu in self._healthy}
        for share in dict.fromkeys(free):
            gpu = self._gpu(share)
            if share not in chosen:
                rest[gpu].append(share)
        while len(chosen) < size and (left := [gpu for gpu in rest if rest[gpu]]):
            gpu = min(left, key=lambda gpu: self._rank(held[gpu], len(rest[gpu])))
            chosen.append(rest[gpu].pop(0))
            held[gpu] += 1
        return chosen

    def _rank(self, held: int, free: int) -> tuple[int, int]:
        return (-held if self._several == "together" else held, -free)

    def _gpu(self, share: str) -> str:
        gpu, between, number = share.rpartition(_BETWEEN)
        if gpu in self._healthy and between and number.isdecimal() and int(number) < self._per_gpu:
            return gpu
        raise UnknownShare(f"{share!r} is no share of a GPU here")
