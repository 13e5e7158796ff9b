# SPDX-License-Identifier: BSD-3-Clause
"""The host memory to prepare before it is needed, so that not even the first eviction waits for pages.

Contention is expected on a GPU that several groups use once their footprints come near to its memory. In the long run,
the host then holds what the GPU cannot. A switch takes no more, because memory leaves while other memory arrives.
Unevictable memory for which a client waits takes room permanently. A little is prepared before the footprints have
grown that far, because pages are prepared more slowly than they are filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .messages import Prepare, PreparePool
from .model import Client, Gpu, Model

MIB = 1 << 20
GIB = 1 << 30
#: The fraction of a GPU's memory that the footprints must exceed.
IN_SIGHT = 0.8
#: The bytes to prepare as soon as contention is expected.
HEAD_START = 2 * GIB
#: Seconds for which less must be wanted before the reserve shrinks.
PATIENCE = 10.0


class HostReserve:
    """Decides how much host memory to prepare.

    Parameters
    ----------
    model
        The state of the core, which has the footprints.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        #: The last decisions.
        self.target = 0
        self._prepared: dict[int, int] = {}
        self._less_since: float | None = None
        #: Clients whose memory may have changed.
        self._changed: dict[int, Client] = {}
        #: Whether to decide again although nothing has changed on a GPU.
        self.asked = False
        #: Bytes that the GPUs lack, and the reserve that is wanted for that.
        self._lacking = self._wanted = 0

    def note_change(self, client: Client) -> None:
        """Note that a client's memory may have changed, or that it came or left."""
        self._changed[client.number] = client
        self.asked = True

    def decide(
        self, now: float, gpus: Mapping[str, Gpu]
    ) -> tuple[list[Prepare | PreparePool], float | None]:
        """Return the decisions for GPUs whose lack may have changed, and when to decide again without an event."""
        decisions: list[Prepare | PreparePool] = []
        self.asked = False
        for gpu in gpus.values():
            lacking = self._lacks(gpu)
            self._lacking += lacking - gpu.lacking
            gpu.lacking = lacking
        if gpus:
            self._wanted = min(_steps(self._lacking), self._budget())
        target, again = self._settle(self._wanted, now)
        clients = self._model.clients
        changed: Iterable[Client] = self._changed.values()
        if target != self.target:
            self.target = target
            decisions.append(PreparePool(target))
            changed = clients.values()
        elif len(self._changed) > 1:
            changed = [c for c in clients.values() if c.number in self._changed]
        for client in changed:
            if client.number not in clients:
                continue
            wanted = min(target, _steps(_movable(client))) if client.backend == "swap" else 0
            if wanted != self._prepared.get(client.number, 0):
                self._prepared[client.number] = wanted
                decisions.append(Prepare(client.number, wanted))
        for number in self._changed:
            if number not in clients:
                self._prepared.pop(number, None)
        self._changed.clear()
        return decisions, again

    def _budget(self) -> int:
        """Return the host's budget, rounded down: it is measured every second, and never quite the same."""
        budget = self._model.host_budget
        step = max(64 * MIB, 1 << max(0, budget.bit_length() - 5))
        return budget // step * step

    def _lacks(self, gpu: Gpu) -> int:
        if gpu.promised <= IN_SIGHT * gpu.capacity:
            return 0
        sizes = [share.promised for share in gpu.shares.values()]
        if len(sizes) - sizes.count(0) < 2:
            return 0
        unevictable = sum(
            self._model.need(wait, gpu) for wait in gpu.queue if wait.grow is not None
        )
        return max(0, gpu.promised + unevictable - gpu.capacity) + min(HEAD_START, max(sizes))

    def _settle(self, wanted: int, now: float) -> tuple[int, float | None]:
        """Grow the reserve at once, and shrink it only once less has been wanted for a while, or no client is left."""
        if wanted >= self.target or not self._model.clients:
            self._less_since = None
            return wanted, None
        if self._less_since is None:
            self._less_since = now
        if now < self._less_since + PATIENCE:
            return min(self.target, self._budget()), self._less_since + PATIENCE
        self._less_since = None
        return wanted, None


def _movable(client: Client) -> int:
    """Return the bytes that may have to leave the GPU or have left it. A new client with neither needs no pages yet."""
    resident = sum(h.resident for h in client.holdings.values())
    return resident + max((h.host for h in client.holdings.values()), default=0)


def _steps(size: int) -> int:
    """Round up by a quarter at most, so that not every allocation has an effect."""
    step = max(64 * MIB, 1 << max(0, size.bit_length() - 3))
    return -(-size // step) * step
