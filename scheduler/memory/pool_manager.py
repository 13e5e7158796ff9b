# SPDX-License-Identifier: BSD-3-Clause
"""Host memory for swapped data, as the server lends it to clients: the pools, their sizes, and what lies outside.

Each user has a pool of their own, since those who have one map all of it. It is made with the first client that swaps,
never lent to anybody else, and let go once none of that user's processes is left. All pools together have the budget,
of which each may use what the others do not, and a user no more than what an administrator set.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from ..core import messages as ev
from .budget import host_budget, host_limit, machine_available, machine_memory
from .pool import CHUNK, Figures, Pool

log = logging.getLogger(__name__)

#: Seconds for which pages of the pool that nobody wants any more are kept: contention comes and goes.
KEEP = 10.0
#: Where clients make no pages themselves, so many bytes are at hand beyond what is in use, and fewer who have less.
AHEAD = 512 << 20
#: Bytes by which a pool may take more than its table says, for the table itself.
TABLE = 4 * CHUNK
#: Of what the machine can spare, the part that may be made ready until that is measured again: other schedulers measure
#: the same.
PREPARED_FRACTION = 0.25
#: So many bytes may be in any case.
LEAST_STEP = 256 << 20
#: What a client may say that it has swapped out, beyond what it was promised: all that it has is in whole chunks.
ROUNDING = 8 * CHUNK


@dataclass(slots=True, eq=False)
class HostAccount:
    """What one user has of the host's memory."""

    #: None where the system gives none: clients have their own then.
    pool: Pool | None
    clients: set[int] = field(default_factory=set)
    #: Since when fewer pages are wanted than exist.
    surplus_since: float | None = None
    figures: Figures = field(default_factory=lambda: Figures(0, 0, 0, 0, 0))
    #: Bytes that the pool took when the machine was measured.
    taken: int = 0
    #: What an administrator allows it (0: any), what it may use now, and whether it was said that it uses more.
    quota: int = 0
    limit: int = 0
    overused: bool = False


class PoolManager:
    """Lends each user's pool to their clients that swap, and gives it the size that is wanted.

    Parameters
    ----------
    host_memory
        Bytes of host memory that swapped data may take; None: what the machine has.
    apart
        Whether each user has a pool of their own, and only while they have processes.
    quota
        Says how many of them one user may take; 0: no bound.
    prepared_only
        Whether clients are to use no pages but those that this process has made.
    """

    def __init__(
        self,
        host_memory: int | None,
        *,
        apart: bool = False,
        quota: Callable[[str], int] = lambda user: 0,
        prepared_only: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._host_memory = host_memory
        self._apart = apart
        self._quota = quota
        self._prepared_only = prepared_only
        self._accounts: dict[str, HostAccount] = {}
        self._users: dict[int, str] = {}
        #: What clients say that they hold, by client and GPU.
        self._held: dict[tuple[int, str], ev.Usage] = {}
        #: Bytes that swapped data may take; -1: not known yet.
        self.budget = -1
        #: What that could be if no other program needed any host memory.
        self.most = 0
        self._target = self._step = 0
        self._failed = False

    def start(self) -> None:
        """Make the pool, where there is one for all."""
        if not self._apart:
            self._account("")

    def stop(self) -> None:
        """Let the pools go; clients keep what they have mapped."""
        for account in self._accounts.values():
            if account.pool is not None:
                for process in account.pool.lent.values():
                    self._unwatch(process.fileno())
                account.pool.close()
        self._accounts.clear()

    # --- Clients ------------------------------------------------------------------------------

    def join(self, client: int, user: str) -> None:
        """Take in whose a client is."""
        user = user if self._apart else ""
        self._users[client] = user
        account = self._account(user)
        account.clients.add(client)
        account.quota = self._quota(user)

    def _account(self, user: str) -> HostAccount:
        account = self._accounts.get(user)
        if account is None:
            account = self._accounts[user] = HostAccount(self._make())
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
        """Return the descriptor of its user's pool and the slot that a process has; None where there is none for it."""
        pool = self._accounts[self._users[client]].pool
        slot = pool.lend(pid, again=again) if pool is not None and pid else None
        if pool is None or slot is None:
            return None
        self._size_one(self._users[client])
        return pool.descriptor, slot

    def watch(self, client: int, slot: int) -> None:
        """Clean up after the process that has a slot as soon as it ends."""
        pool = self._accounts[self._users[client]].pool
        assert pool is not None
        descriptor = pool.lent[slot].fileno()
        if descriptor is not None:
            self._loop.add_reader(descriptor, self.reap)

    def note(self, client: int, usage: ev.Usage) -> None:
        """Take in what a client holds."""
        self._held[client, usage.gpu] = usage
        if self._prepared_only:
            # More may be in use than when it was last looked at, and pages are to be ahead of that.
            self._size_one(self._users[client])

    def forget(self, client: int) -> None:
        """Forget what a client held."""
        for key in [key for key in self._held if key[0] == client]:
            del self._held[key]
        self._accounts[self._users.pop(client)].clients.discard(client)

    # --- Sizes --------------------------------------------------------------------------------

    def prepare(self, target: int) -> None:
        """Have so many bytes of the pools at hand."""
        self._target = target
        self._size()

    def measure(self) -> bool:
        """Find out how much host memory there is for swapped data; return whether that has changed."""
        self._survey()
        for user, account in self._accounts.items():
            account.quota = self._quota(user)
            self._check(user, account)
        for account in self._accounts.values():
            account.taken = 0 if account.pool is None else account.pool.allocated()
        held = sum(account.taken for account in self._accounts.values()) + self._outside()
        before, self.budget = self.budget, host_budget(self._host_memory, held)
        self.most = host_limit(self._host_memory)
        machine = self.budget if self._host_memory is None else host_budget(None, held)
        self._step = max(LEAST_STEP, int(PREPARED_FRACTION * (machine - held)))
        return self.budget != before

    def reap(self) -> None:
        """Clean up after processes that have ended, and after users that have gone."""
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
                # Its thread has the lowest priority: nobody waits for it.
                self._loop.run_in_executor(None, pool.close)
        self._size()

    def _check(self, user: str, account: HostAccount) -> None:
        """A limit is in memory that its clients can write to: what they take beyond it is taken back, or named."""
        pool, figures = account.pool, account.figures
        if pool is None or not self._apart:
            return
        if pool.allocated() > figures.prepared + TABLE:
            log.warning("%s made %d bytes of a pool that nobody has; given back", user, pool.trim())
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
        """Have as many pages ready as are wanted, and give back what has been too many for a while."""
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
                # Those who have less on the GPUs need less room for it.
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
        most = account.limit = limit
        if not account.clients:
            target = most = 0
        elif pool.allocated() <= target:
            account.surplus_since = None
        elif account.surplus_since is None:
            account.surplus_since = now
        elif now - account.surplus_since >= KEEP:
            most = target
        pool.order(limit=limit, target=target, most=most, ahead=ahead)

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
        """Bytes that each user's clients may have to move out, and those that they have."""
        found: Counter[str] = Counter()
        for (client, _), usage in self._held.items():
            found[self._users[client]] += usage.resident + usage.host
        return found

    def _outside(self) -> int:
        """Bytes of swapped data that are not in a pool: of an earlier scheduler's, or of clients without a slot.

        Clients say so, and nobody can check: so never more than what they were promised, nor than is in use at all.
        """
        held: dict[str, int] = {}
        for (client, _), usage in self._held.items():
            user = self._users[client]
            held[user] = held.get(user, 0) + min(usage.host, usage.promised + ROUNDING)
        outside = 0
        for user, size in held.items():
            account = self._accounts[user]
            rest = max(0, size - account.figures.in_use)
            outside += min(rest, account.quota) if account.quota else rest
        return min(outside, max(0, machine_memory() - machine_available())) if outside else 0
