# SPDX-License-Identifier: BSD-3-Clause
"""Lends pools of host memory for swapped data to clients, and sets their sizes.

Each user has a pool of their own, because all clients with a pool map the whole of it. A pool is made with the user's
first client that swaps, and is never lent to another user. It is released once none of the user's processes is left.
All pools together have the budget. Each may use the part that the others leave, up to the administrator's limit for its
user.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..core import messages as ev
from .budget import host_budget, host_limit, machine_available, machine_memory, survey
from .disk.store import DiskWishes
from .disk.tier import DiskOptions, DiskTier
from .pool import CHUNK, Figures, Pool

log = logging.getLogger(__name__)

#: Seconds for which unwanted pages of the pool are kept, because contention comes and goes.
KEEP = 10.0
#: If clients do not prepare pages themselves: the bytes that are prepared beyond what is in use, at most.
AHEAD = 512 << 20
#: Bytes by which a pool may exceed its table and the figures in it, because pages are recorded after they are made.
TOLERANCE = 4 * CHUNK
#: The fraction of the machine's spare memory that may be prepared before it is measured again. Other schedulers on the
#: machine measure the same memory.
PREPARED_FRACTION = 0.25
#: The bytes that may be prepared in any case.
LEAST_STEP = 256 << 20
#: The part (1/n) of a pool's limit that is kept free for evictions at most, if data can go to a disk.
FREE_PART = 4
#: Bytes by which a client's swapped data may exceed its promise, because it is held in whole chunks.
ROUNDING = 8 * CHUNK


@dataclass(slots=True, eq=False)
class HostAccount:
    """One user's host memory for swapped data."""

    #: None if the system provides none. Clients then have their own.
    pool: Pool | None
    clients: set[int] = field(default_factory=set)
    #: Since when fewer pages have been wanted than exist.
    surplus_since: float | None = None
    figures: Figures = field(default_factory=lambda: Figures(0, 0, 0, 0, 0))
    #: Bytes that the pool took when the machine was last measured.
    taken: int = 0
    #: The administrator's limit (0: none), the present limit, and whether its excess was logged.
    quota: int = 0
    limit: int = 0
    overused: bool = False


class PoolManager:
    """Lends each user's pool to the user's clients that swap, and sets the sizes of the pools.

    Parameters
    ----------
    host_memory
        Bytes of host memory that swapped data may take; None: as much as the machine has.
    apart
        Whether each user has a pool of their own, only while the user has processes.
    quota
        Returns the bytes that one user may take; 0: no limit.
    prepared_only
        Whether clients must only use pages that this process has prepared.
    disk
        The disk to which data of idle clients may go; None: it stays in host memory.
    disk_changed
        Called in the event loop after data was moved to or from the disk.
    """

    def __init__(
        self,
        host_memory: int | None,
        *,
        apart: bool = False,
        quota: Callable[[str], int] = lambda user: 0,
        prepared_only: bool = False,
        disk: DiskOptions | None = None,
        disk_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._host_memory = host_memory
        self._apart = apart
        self._quota = quota
        self._prepared_only = prepared_only
        self._accounts: dict[str, HostAccount] = {}
        self._users: dict[int, str] = {}
        #: What clients state that they hold, by client and GPU.
        self._held: dict[tuple[int, str], ev.Usage] = {}
        #: Bytes that swapped data may take; -1: not known yet.
        self.budget = -1
        #: The budget if no other program needed host memory.
        self.most = 0
        #: Bytes that would be needed in addition if data that several clients have in common was stored for each.
        self.shared = 0
        self._target = self._step = 0
        self._failed = False
        #: The slot of each client in its user's pool.
        self._slots: dict[int, int] = {}
        self._spill, self._fetch = ev.Spill(()), ev.Fetch(())
        self._disk_changed = disk_changed
        #: The disk; None: there is none.
        self.disk = None if disk is None else DiskTier(disk, self._note_disk)

    def start(self) -> None:
        """Make the pool if there is one for all users, and try the disk."""
        if self.disk is not None:
            self.disk.start()
        if not self._apart:
            self._account("")

    def stop(self) -> None:
        """Release the pools. Clients keep what they have mapped."""
        if self.disk is not None:
            self.disk.stop()
        for account in self._accounts.values():
            if account.pool is not None:
                for process in account.pool.lent.values():
                    self._unwatch(process.fileno())
                account.pool.close()
        self._accounts.clear()

    # --- Clients ------------------------------------------------------------------------------

    def join(self, client: int, user: str) -> None:
        """Note the user of a client."""
        user = user if self._apart else ""
        self._users[client] = user
        account = self._account(user)
        account.clients.add(client)
        account.quota = self._quota(user)

    def _account(self, user: str) -> HostAccount:
        account = self._accounts.get(user)
        if account is None:
            account = self._accounts[user] = HostAccount(self._make())
            if self.disk is not None and account.pool is not None:
                self.disk.add(account.pool)
        return account

    def _make(self) -> Pool | None:
        try:
            return Pool(machine_memory(), prepared_only=self._prepared_only)
        except OSError as error:
            if not self._failed:
                log.warning("no pool of host memory: %s; every client has its own", error.strerror)
            self._failed = True
            return None

    def lend(self, client: int, pid: int, *, again: bool) -> tuple[int, int] | None:
        """Return the descriptor of a user's pool and the slot of a process; None if there is none for it."""
        pool = self._accounts[self._users[client]].pool
        slot = pool.lend(pid, again=again) if pool is not None and pid else None
        if pool is None or slot is None:
            return None
        self._slots[client] = slot
        if self.disk is not None:
            self.disk.note_process(pool, slot, pid)
        self._size_one(self._users[client])
        return pool.descriptor, slot

    def watch(self, client: int, slot: int) -> None:
        """Clean up after the process that has a slot as soon as it ends."""
        pool = self._accounts[self._users[client]].pool
        assert pool is not None
        descriptor = pool.lent[slot].fileno()
        if descriptor is not None:
            self._loop.add_reader(descriptor, self.reap)

    def update_usage(self, client: int, usage: ev.Usage) -> None:
        """Update the usage of a client."""
        self._held[client, usage.gpu] = usage
        if self._prepared_only:
            # More may be in use than at the last check, and the prepared pages must stay ahead of that.
            self._size_one(self._users[client])

    def forget(self, client: int) -> None:
        """Remove the usage of a client."""
        for key in [key for key in self._held if key[0] == client]:
            del self._held[key]
        self._slots.pop(client, None)
        self._accounts[self._users.pop(client)].clients.discard(client)

    # --- Sizes --------------------------------------------------------------------------------

    def prepare(self, target: int) -> None:
        """Keep this many bytes of the pools prepared."""
        self._target = target
        self._size()

    def measure(self) -> bool:
        """Measure the host memory for swapped data; return whether it, or what is shared of it, has changed."""
        self._survey()
        for user, account in self._accounts.items():
            account.quota = self._quota(user)
            self._check(user, account)
        for account in self._accounts.values():
            account.taken = 0 if account.pool is None else account.pool.allocated()
        held = sum(account.taken for account in self._accounts.values()) + self._outside()
        seen = survey()
        before, self.budget = (self.budget, self.shared), host_budget(self._host_memory, held, seen)
        self.most = host_limit(self._host_memory, seen)
        self.shared = sum(account.figures.shared for account in self._accounts.values())
        machine = self.budget if self._host_memory is None else host_budget(None, held, seen)
        self._step = max(LEAST_STEP, int(PREPARED_FRACTION * (machine - held)))
        return (self.budget, self.shared) != before

    def reap(self) -> None:
        """Clean up after processes that have ended, and after users without processes."""
        for user, account in list(self._accounts.items()):
            pool = account.pool
            if pool is not None:
                for process in list(pool.lent.values()):
                    if process.has_ended():
                        self._unwatch(process.fileno())
                pool.reap()
            if not self._apart or account.clients or (pool is not None and pool.lent):
                continue
            del self._accounts[user]
            if pool is not None:
                # Its thread has the lowest priority, so this does not wait for it.
                self._loop.run_in_executor(None, self._close, pool)
        self._size()

    def _close(self, pool: Pool) -> None:
        if self.disk is not None:
            self.disk.remove(pool)
        pool.close()

    # --- The disk -----------------------------------------------------------------------------

    def _note_disk(self) -> None:
        """Report a change; called in the tier's thread."""
        # The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._disk_changed)

    def wish(self, decision: ev.Spill | ev.Fetch) -> None:
        """Have data of clients go to the disk, or come back."""
        if isinstance(decision, ev.Spill):
            self._spill = decision
        else:
            self._fetch = decision
        for account in self._accounts.values():
            self._tell_disk(account)

    def on_disk(self) -> ev.Disk:
        """Return the state of the disk. After a failure, no more data goes there."""
        if self.disk is None:
            return ev.Disk(0)
        status, held = self.disk.status(), {}
        of_pool = {
            user: {} if account.pool is None else self.disk.held(account.pool)
            for user, account in self._accounts.items()
        }
        for client, slot in self._slots.items():
            if size := of_pool[self._users[client]].get(slot, 0):
                held[client] = size
        apart = tuple(sorted(self._users.keys() - self._slots.keys()))
        return ev.Disk(0 if status.fault else status.size, held, apart)

    def disk_status(self) -> dict[str, Any] | None:
        """Return the disk's state, as docs/reference/control.md describes it; None: there is no disk."""
        if self.disk is None:
            return None
        return {"folder": str(self.disk.options.folder), **asdict(self.disk.status())}

    def _tell_disk(self, account: HostAccount) -> None:
        if self.disk is None or account.pool is None:
            return
        ours = account.clients & self._slots.keys()
        spill = tuple(self._slots[c] for c in self._spill.clients if c in ours)
        at_once = sum(c in ours for c in self._spill.clients[: self._spill.at_once])
        fetch = tuple(self._slots[c] for c in self._fetch.clients if c in ours)
        resident = sum(
            usage.resident for (client, _), usage in self._held.items() if client in ours
        )
        limit = account.limit // CHUNK
        free = min(-(-resident // CHUNK), limit // FREE_PART)
        self.disk.set_wishes(account.pool, DiskWishes(spill, at_once, fetch, limit, free))

    def _check(self, user: str, account: HostAccount) -> None:
        """Enforce a limit that is in memory to which clients can write: take back the excess, or log it."""
        pool, figures = account.pool, account.figures
        if pool is None or not self._apart:
            return
        if pool.allocated() > figures.prepared + pool.table + TOLERANCE:
            log.warning(
                "%s prepared %d bytes outside the limits of the pool; they were given back",
                user,
                pool.trim(),
            )
        overused = figures.in_use > account.limit and figures.in_use > max(
            figures.limit, account.limit
        )
        if overused and not account.overused:
            log.warning(
                "%s uses %d bytes of host memory for swapped data, of %d that they may",
                user, figures.in_use, account.limit,
            )  # fmt: skip
        account.overused = overused

    def _size(self) -> None:
        """Prepare as many pages as are wanted, and give back the surplus after a while."""
        self._survey()
        self._size_these(self._accounts)

    def _size_one(self, user: str) -> None:
        account = self._accounts[user]
        if account.pool is not None:
            account.figures = account.pool.figures()
            self._size_these({user: account})

    def _size_these(self, accounts: dict[str, HostAccount]) -> None:
        limit = max(0, self.budget - self._outside())
        used = sum(account.figures.in_use for account in self._accounts.values())
        movable = self._movable()
        wanted = movable.total()
        now = time.monotonic()
        for user, account in accounts.items():
            if account.pool is None:
                continue
            own = max(0, limit - (used - account.figures.in_use))
            own = min(own, account.quota) if account.quota else own
            part, step = self._target, self._step
            if len(self._accounts) > 1:
                # Users with less memory on the GPUs need less room for it.
                part = part * movable[user] // wanted if wanted else 0
                step = step * movable[user] // wanted if wanted else 0
            self._order(account, own, min(part, own, account.taken + step), movable[user], now)

    def _order(
        self, account: HostAccount, limit: int, target: int, movable: int, now: float
    ) -> None:
        pool = account.pool
        assert pool is not None
        ahead = 0
        if self._prepared_only and account.clients:
            ahead = min(AHEAD, movable, max(0, limit - account.figures.in_use))
        target = max(target, min(limit, account.figures.in_use + ahead)) if ahead else target
        # Copies of data that is on the GPU again stay as long as there is room for them.
        most = kept = account.limit = limit
        if not account.clients:
            target = most = kept = 0
        elif pool.allocated() <= target:
            account.surplus_since = None
        elif account.surplus_since is None:
            account.surplus_since = now
        elif now - account.surplus_since >= KEEP:
            most = target
        pool.order(limit=limit, target=target, most=most, kept=kept, ahead=ahead)
        self._tell_disk(account)

    def _survey(self) -> None:
        for account in self._accounts.values():
            if account.pool is not None:
                account.figures = account.pool.figures()

    def status(self, user: str | None = None) -> dict[str, int] | None:
        """Return a user's pool, or all of them together, as docs/reference/control.md describes it."""
        self._survey()
        found = [
            account.figures
            for whose, account in self._accounts.items()
            if account.pool is not None and user in (None, whose)
        ]
        if not found:
            return None
        return {name: sum(asdict(f)[name] for f in found) for name in asdict(found[0])}

    def _unwatch(self, descriptor: int | None) -> None:
        if descriptor is not None:
            self._loop.remove_reader(descriptor)

    def _movable(self) -> Counter[str]:
        """Return the bytes that each user's clients may have to evict, or have evicted."""
        found: Counter[str] = Counter()
        for (client, _), usage in self._held.items():
            found[self._users[client]] += usage.resident + usage.host
        return found

    def _outside(self) -> int:
        """Return the swapped bytes outside the pools: in an earlier scheduler's pool, or of clients without a slot.

        Clients state them without proof, so they count only up to their promises, and up to the memory in use.
        """
        held: dict[str, int] = {}
        for (client, _), usage in self._held.items():
            user = self._users[client]
            held[user] = held.get(user, 0) + min(usage.host, usage.promised + ROUNDING)
        outside = 0
        for user, size in held.items():
            account = self._accounts[user]
            rest = max(0, size - account.figures.in_use - account.figures.on_disk)
            outside += min(rest, account.quota) if account.quota else rest
        return min(outside, max(0, machine_memory() - machine_available())) if outside else 0
