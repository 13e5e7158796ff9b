# SPDX-License-Identifier: BSD-3-Clause
"""A token lease by burst estimate: Gemini's rules.

One group at a time holds the token, for a quota that follows its bursts: half of the estimate and half of the previous
quota, at least 100 ms, and at most its limit of the window. The next is the group that lacks most of its request, then
the one that has had least.

The differences: the estimate is that of our predictor and not the maximum of three seconds, since bursts are of cells
and not of single synchronisations. Overuse is known from the GPU time that the next order counts, not from a
synchronisation after each quota.
"""

from __future__ import annotations

from ..core.policy_api import PATIENCE, GpuView, GroupView, Paces, Parts, View, WaitView
from .fcfs import FirstComeFirstServed


class Gemini(FirstComeFirstServed):
    """Token lease by burst estimate."""

    name = "gemini"
    orders_by_gpu_time = True
    #: Seconds: the first quota, and the smallest one.
    first_quota, least_quota = 0.250, 0.100

    def __init__(self, view: View) -> None:
        super().__init__(view)
        #: By group: the lease that the quota is for, and the quota in seconds.
        self._quotas: dict[str, tuple[int | None, float]] = {}

    def queue_parts(self, wait: WaitView) -> Parts:
        """Order by the missing part of the request, then by use; age decides between equals."""
        view, group = self.view, wait.group
        times = view.times
        request = max(claim.entitlement.request for claim in times.of(group))
        use = max(
            (times.share(f"group:{group.id}", u, view.now) for u in group.shares), default=0.0
        )
        missing = (request - use) / request if use < request else 0.0
        # Requests may add up to more than there is, so a group that had none for a minute also comes before all others.
        waited = (view.now - wait.since) / PATIENCE - 1
        lack = max(missing, min(waited, 1.0))
        return ({"request": -lack}, {"use": round(use, 2)}, {"came": wait.since}, *self.ties(wait))

    def quantum(self, group: GroupView, wait: WaitView | None) -> float | None:
        """Return the quota of the lease."""
        return self._quota(group)[1]

    def paces(self, gpu: GpuView) -> Paces:
        """Set no bounds; adapt the quotas, once for each lease.

        The core also reads quanta when a user requests an explanation, which must not change them.
        """
        for group in gpu.holders.values():
            self._quotas[group.id] = self._quota(group)
        if len(self._quotas) > 2 * (len(self.view.leased) + len(self.view.queue)) + 16:
            known = self.view.leased.keys() | {w.group.id for w in self.view.queue}
            self._quotas = {g: q for g, q in self._quotas.items() if g in known}
        return super().paces(gpu)

    def _quota(self, group: GroupView) -> tuple[int | None, float]:
        lease, quota = self._quotas.get(group.id, (None, self.first_quota))
        if group.lease is None or lease == group.lease:
            return lease, quota
        quota = (self.view.expected(group) + quota) / 2
        times = self.view.times
        return group.lease, min(max(quota, self.least_quota), times.limit(group) * times.window)
