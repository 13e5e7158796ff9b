# SPDX-License-Identifier: BSD-3-Clause
"""Carries out the core's decisions about checkpoints, and passes the results to the core."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import messages as ev
from ..core.refusals import WHY
from .checkpoint_support import Ability

if TYPE_CHECKING:
    from .checkpoint_helper import Hibernator, Outcome
    from .devices import Devices
    from .drivers import Driver
    from .targets import Target

log = logging.getLogger(__name__)

#: Seconds for which the scheduler waits for steps when it ends. It still has to write its records before it is killed,
#: which happens after 10 s in all (deploy/systemd/gpushare.service).
PATIENCE = 3.0
#: The text of a result for a process that has ended.
ENDED = "its process has ended"
#: Seconds before a service that does not respond is asked again: doubled from the first to the last. One that responds
#: is asked again after the last.
FIRST_PAUSE, LAST_PAUSE = 1.0, 30.0


class Hibernations:
    """The checkpoint steps that are under way.

    Parameters
    ----------
    driver
        The driver that the clients use; None: there is none, and no process hibernates.
    devices
        The GPUs.
    handle
        Passes an event to the core.
    find
        Returns the process of a client; None: the client has left.
    service
        The socket of a privileged hibernator; None: the hibernator is started, and has the scheduler's rights.
    """

    def __init__(
        self,
        driver: Driver | None,
        devices: Devices,
        handle: Callable[[ev.Event], None],
        find: Callable[[int], Target | None],
        service: Path | None = None,
    ) -> None:
        self._driver = driver
        self._devices = devices
        self._handle = handle
        self._find = find
        self._service = service
        self._hibernator: Hibernator | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._probing: asyncio.Task[None] | None = None
        #: Whether no further step begins.
        self.closed = False
        #: The GPU of each client that is being restored, and the bytes that it takes there.
        self._restoring: dict[int, tuple[str, int]] = {}
        #: Held by threads that check whether there is room for a restore.
        self._room_check = threading.Lock()

    def probe(self) -> None:
        """Find out in the background, once, whether processes can be checkpointed on this machine."""
        if self._driver is not None and self._probing is None and not self.closed:
            self._probing = asyncio.get_running_loop().create_task(self._probe())

    def refusal(self, peer: Target | None) -> str | None:
        """Return why a process cannot hibernate: a code of `refusals.WHY`, or None. None as a peer: it has left."""
        if self._driver is None or self.closed:
            return "helper"
        return "failed" if peer is None else self._helper().refuses(peer)

    def may_park(self, client: int) -> bool:
        """Whether a client may be ordered to park. If not, the core gets the reason in the loop's next round."""
        code = self.refusal(self._find(client))
        if code is None:
            return True
        text = ENDED if code == "failed" else WHY[code]
        outcome = ev.Checkpointed(client, False, code, text)
        asyncio.get_running_loop().call_soon(self._handle, outcome)
        return False

    def hibernate(self, decision: ev.Hibernate) -> None:
        """Have a client's process checkpointed."""
        self._do(self._hibernate(decision, self._find(decision.client)))

    def wake(self, decision: ev.Wakeup) -> None:
        """Have a client's process restored."""
        self._do(self._wake(decision, self._find(decision.client)))

    async def close(self) -> None:
        """Wait some seconds for steps under way, the first time. Processes that hibernate stay so."""
        if self.closed:
            return
        self.closed = True
        if self._probing is not None:
            self._probing.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE)
        for task in self._tasks:
            task.cancel()
        if self._hibernator is not None:
            await self._hibernator.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        if self.closed:
            # The next scheduler finds the process parked, and reads its state from the driver.
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _helper(self) -> Hibernator:
        if self._hibernator is None:
            # Imported late, because it is not needed if no process hibernates.
            from .checkpoint_helper import Hibernator

            assert self._driver is not None
            self._hibernator = Hibernator(self._driver, service=self._service)
        return self._hibernator

    async def _probe(self) -> None:
        found, pause = await self._ability(), FIRST_PAUSE
        self._handle(ev.Hibernatable(found.able, found.moves, found.code, found.text))
        # A service may start later than the scheduler, and may end.
        while self._service is not None and (found.able or found.code == "helper"):
            await asyncio.sleep(LAST_PAUSE if found.able else pause)
            before, found = found, await self._ability()
            pause = FIRST_PAUSE if found.able else min(2 * pause, LAST_PAUSE)
            if found != before:
                self._handle(ev.Hibernatable(found.able, found.moves, found.code, found.text))

    async def _ability(self) -> Ability:
        try:
            found = await self._helper().probe()
        except Exception:
            log.exception("whether processes can be hibernated here cannot be found out")
            found = Ability(False, "helper", WHY["helper"])
        if not found.able:
            log.info("no hibernation: %s", found.text)
        return found

    async def _hibernate(self, decision: ev.Hibernate, peer: Target | None) -> None:
        if self._driver is None:
            # It was parked for a scheduler that had a helper.
            self._handle(ev.Checkpointed(decision.client, False, "helper", WHY["helper"]))
            return
        if peer is None or peer.has_ended():
            self._handle(ev.Checkpointed(decision.client, False, "failed", ENDED))
            return
        held = await asyncio.to_thread(self._devices.processes, decision.gpu) or {}
        outcome = await self._outcome(self._helper().hibernate(peer))
        self._handle(ev.Checkpointed(decision.client, *outcome, held=held.get(peer.pid, 0)))

    async def _wake(self, decision: ev.Wakeup, peer: Target | None) -> None:
        client = decision.client
        if self._driver is None:
            self._handle(ev.Woken(client, False, "helper", WHY["helper"]))
            return
        if peer is None or peer.has_ended():
            # Another process may have its number.
            self._handle(ev.Woken(client, False, "failed", ENDED))
            return
        pair = (decision.gpu_from, decision.gpu_to) if decision.gpu_to else None
        step = self._helper().wake(peer, pair, lambda: self._has_room(decision))
        outcome = await self._outcome(step)
        self._restoring.pop(client, None)
        self._handle(ev.Woken(client, *outcome))

    def _has_room(self, decision: ev.Wakeup) -> bool:
        """Whether a GPU has room for a restore besides the restores under way, whose memory it may not show yet."""
        with self._room_check:
            self._restoring.pop(decision.client, None)
            # Before the reading, so that a restore that ends meanwhile is in one of them.
            others = sum(
                size for gpu, size in list(self._restoring.values()) if gpu == decision.gpu
            )
            found = self._devices.read(decision.gpu)
            if found is not None and found.total - found.used - others < decision.needs:
                return False
            self._restoring[decision.client] = decision.gpu, decision.needs
            return True

    async def _outcome(self, step: Coroutine[Any, Any, Outcome]) -> tuple[bool, str, str, float]:
        """Return the result of a step. An unexpected error also counts as a result, because the core waits for one."""
        try:
            return await step
        except Exception:
            log.exception("a step of the hibernator's failed")
            return False, "helper", WHY["helper"], 0.0
