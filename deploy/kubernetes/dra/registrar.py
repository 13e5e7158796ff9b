# SPDX-License-Identifier: BSD-3-Clause
"""Makes the node's scheduler know the prepared claims."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from ....scheduler.protocol.client import ControlClient, ControlError, SchedulerUnreachable
from ..node import PATIENCE
from .prepared import PreparedClaim

log = logging.getLogger(__name__)


class Registrar:
    """Registers claims at the scheduler.

    Parameters
    ----------
    socket
        The scheduler's socket.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        #: The last error of each claim, so that it is logged once; "" for all of them.
        self._faults: dict[str, str] = {}

    def synchronize(self, claims: Iterable[tuple[PreparedClaim, str]]) -> None:
        """Register new claims with the scheduler, and remove claims that are no longer prepared.

        Nothing is raised. If the scheduler does not respond, the next call does the work.
        """
        wanted = {claim.uid: (claim, token) for claim, token in claims}
        try:
            with ControlClient(self._socket, PATIENCE) as client:
                known = {*client.request("prepared_claims")["claims"]}
                for uid in known - wanted.keys():
                    client.request("unprepare_claim", uid=uid)
                for uid in wanted.keys() - known:
                    self._register(client, *wanted[uid])
        except ControlError as error:
            self._report("", f"the scheduler does not take the claims: {error}")
        else:
            self._report("", "")
        for uid in self._faults.keys() - {"", *wanted}:
            del self._faults[uid]

    def _register(self, client: ControlClient, claim: PreparedClaim, token: str) -> None:
        try:
            client.request(
                "prepare_claim",
                uid=claim.uid,
                token=token,
                user=claim.user,
                teams=[claim.namespace],
                priority=claim.priority,
                **claim.shares,
            )
        except SchedulerUnreachable:
            raise
        except ControlError as error:
            self._report(claim.uid, f"the scheduler refused the claim of {claim.user}: {error}")
        else:
            self._report(claim.uid, "")

    def _report(self, uid: str, fault: str) -> None:
        if fault and fault != self._faults.get(uid):
            log.warning("%s", fault)
        self._faults[uid] = fault
