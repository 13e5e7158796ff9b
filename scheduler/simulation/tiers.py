# SPDX-License-Identifier: BSD-3-Clause
"""The content of notebooks' memory, and where evicted data goes: host memory and a disk, of given sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tiers:
    """What the memory of notebooks contains, and the disk of a node. The defaults are those of a node without tiers.

    Attributes
    ----------
    changed
        The fraction of a notebook's memory that changes between two of its evictions.
    zeros
        The fraction that is all zeros.
    equal
        The fraction of the rest that is equal in all notebooks of one user.
    disk
        Bytes of a node's disk that evicted data may take.
    disk_speed
        Bytes that the disk reads or writes in a second.
    """

    changed: float = 1.0
    zeros: float = 0.0
    equal: float = 0.0
    disk: int = 0
    disk_speed: float = 3e9


#: A node without a disk, on which all memory changes.
PLAIN = Tiers()


@dataclass(slots=True, eq=False)
class Content:
    """The content of one notebook's memory, and what its present move had to copy; bytes.

    Attributes
    ----------
    changed, zeros, equal
        As in ``Tiers``, for this notebook.
    kept
        The part on the GPU of which host memory has a copy that is still valid.
    disk
        The part that is on disk.
    known
        Whether its memory was restored before, so that its process knows what is in it.
    restored_at
        When memory was last restored, seconds.
    copied, zero, shared, hashed
        What the present move copied, found to be zeros or equal to other notebooks' data, and hashed.
    """

    changed: float
    zeros: float
    equal: float
    kept: int = 0
    disk: int = 0
    known: bool = False
    restored_at: float = 0.0
    copied: int = 0
    zero: int = 0
    shared: int = 0
    hashed: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether all of it is copied each time, so that nothing is gained by hashing it."""
        return (self.changed, self.zeros, self.equal) == (1.0, 0.0, 0.0)

    def begin_move(self) -> None:
        """Count anew."""
        self.copied = self.zero = self.shared = self.hashed = 0

    def filled(self, size: int) -> int:
        """Return how much of a part of its memory is not zeros."""
        return size - int(size * self.zeros)

    def clean(self, resident: int) -> int:
        """Return how much of what is on the GPU leaves without a copy, as far as its process knows."""
        zeros = resident - self.filled(resident) if self.known else 0
        return min(resident, self.kept + zeros)
