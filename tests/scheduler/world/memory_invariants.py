# SPDX-License-Identifier: BSD-3-Clause
"""Memory is never exceeded, and the sums are right."""

from __future__ import annotations

from hypothesis.stateful import invariant

from tests.scheduler.world.constants import GPUS, TOTAL
from tests.scheduler.world.state import State
from tests.support.consistency import check_status, validate


class MemoryInvariants(State):
    """What is true of memory after each event."""

    @invariant()
    def physical_memory_is_never_exceeded(self) -> None:
        for gpu in GPUS:
            assert self.used(gpu) <= TOTAL

    @invariant()
    def host_memory_is_never_exceeded(self) -> None:
        assert self.host_used() <= self.host

    @invariant()
    def sums_are_right(self) -> None:
        validate(self.core)
        check_status(self.core, self.now)

    @invariant()
    def clean_memory_only_makes_evictions_cheaper(self) -> None:
        costs = self.core.costs
        for group in self.core.groups.values():
            assert 0 <= costs.clean(group) <= sum(s.resident for s in group.shares.values())
            assert 0 <= costs.eviction_cost(group) <= group.footprint_cost
            if not costs.clean(group):
                assert costs.eviction_cost(group) == group.footprint_cost
            for share in group.shares.values():
                whole = share.resident / share.gpu.bandwidth
                assert whole / 2 <= costs.absence_cost(share, share.resident) <= whole

    @invariant()
    def free_memory_goes_to_the_group_that_is_filling(self) -> None:
        for gpu in self.core.gpus.values():
            if gpu.filling is not None:
                assert gpu.filling.group.filling is not None
                assert gpu.shares[gpu.filling.group.id] is gpu.filling
                assert gpu.free <= 0 or not gpu.owed

    @invariant()
    def memory_of_hibernated_processes_is_not_charged(self) -> None:
        for gpu in self.core.gpus.values():
            holdings = [h for s in gpu.shares.values() for h in s.holdings.values()]
            assert gpu.coming == sum(h.evicting for h in holdings if not h.lost)
            for holding in holdings:
                if holding.client.gone:
                    assert (holding.unevictable, holding.context, holding.resident) == (0, 0, 0)
                assert holding.left == gpu.context_sizes.leaves(holding.took)
                assert not holding.took or holding.client.gone or holding.client.stage == "waking"
