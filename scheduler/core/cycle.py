# SPDX-License-Identifier: BSD-3-Clause
"""What follows from an event: on the GPUs that it concerns, who is served, and what is told to whom."""

from __future__ import annotations

from . import reasons
from .contention import Audience
from .host_reserve import Keeper
from .messages import Contended, Log, Notice
from .model import Gpu, Group, Share, Wait, place
from .planner import Plan
from .quotas import Bounds
from .timers import Timer

#: Where somebody waits, shares are looked at each so many seconds if nothing happens.
LOOK = 1.0


class Decider(Bounds):
    """Decides, after each event, where something may have changed."""

    _keeper: Keeper
    #: What stands between those that wait and their grants, while nothing has come of it.
    _plans: dict[Wait, Plan]

    def _decide(self) -> None:
        now = self.turn.now
        earliest = self.timers.earliest()
        if earliest is not None and earliest <= now:
            for timer in self.timers.due(now):
                self._look_again(timer)
        if self.model.evacuating:
            for group in list(self.model.evacuating.values()):
                self._evacuate(group)
        if self.turn.unclassed:
            self._classify()
        version = self.policy.version
        if version != self._sorted_by:
            if version[0] != self._sorted_by[0]:
                # It is another policy.
                self.turn.repace.update(self.model.gpus)
            self._sort()
        if self.turn.recount:
            self.turn.recount = False
            if self.times.counted:
                self._keep_quotas()
        if self.model.nowhere:
            self._admit_nowhere()
        if self.turn.dirty:
            self._decide_where_needed()
        if self.model.evacuating:
            self._park_those_that_left()
            if self.turn.dirty:
                self._decide_where_needed()
        if self.turn.recount and self.times.counted:
            # Who was admitted on another GPU may be beyond a quota now.
            self.turn.recount = False
            self._keep_quotas()
        if self.turn.unclassed:
            self._classify()
        if self.turn.repace or self.turn.unpaced:
            self._pace()
        if self.policy.failure is not None:
            self._tell_failure()
        if self.turn.restock or self._keeper.asked:
            said, again = self._keeper.decide(self.turn.now, self.turn.restock)
            self.turn.decisions += said
            self.timers.set(("stock", ""), again)
            self.turn.restock.clear()
        self._tell_contended()
        for group in self.turn.touched.values():
            state = group.state
            if state != group.shown:
                group.shown, group.since = state, now
        self.turn.touched.clear()
        if self.turn.dirty:
            # A grant changed what somebody counts as, and so the order.
            self.timers.set(("again", ""), now)

    def _decide_where_needed(self) -> None:
        """Decide on the GPUs that something happened to, but for those where nobody waits for anything."""
        done: dict[str, Gpu] = {}
        while self.turn.dirty:
            dirty, self.turn.dirty = self.turn.dirty, {}
            concerned: dict[str, Gpu] = {}
            for uuid, gpu in dirty.items():
                if uuid in done:
                    continue
                if gpu.calm and not self._fills_on(uuid):
                    self.timers.set(gpu.looks, None)
                else:
                    concerned[uuid] = gpu
            if concerned:
                # Who is revoked on one GPU holds room on another.
                self._decide_on(concerned)
                done |= concerned

    def _fills_on(self, uuid: str) -> bool:
        for group in self.model.filling.values():  # noqa: SIM110 - asked at each event
            if uuid in group.shares:
                return True
        return False

    def _admit_nowhere(self) -> None:
        """Grant those that use no GPU yet."""
        for wait in [w for w in self.model.nowhere if not w.passed_over]:
            if wait.group.lease is None and not wait.group.shares:
                self._admit(wait, False)

    def _look_again(self, timer: Timer) -> None:
        kind, key = timer
        match kind, key:
            case "gpu", str(uuid):
                self.turn.dirty[uuid] = self.model.gpus[uuid]
            case "pace", str(uuid):
                self.turn.repace[uuid] = self.model.gpus[uuid]
            case "class", str(name):
                group = self.model.groups[name]
                self._count_time(group)
                self.turn.touch(group)
            case "stock", _:
                self._keeper.asked = True
            case "client", int(number):
                self._miss(self.model.clients[number])
            case "step", str(name):
                self._step(name)
            case "holding", (number, uuid):
                self._try_again(self.model.clients[number].holdings[uuid])
            case "rest", str(name):
                self._consider(self.model.groups[name])
            case "wake", int(number):
                self._wake_again(self.model.clients[number])

    def _decide_on(self, gpus: dict[str, Gpu]) -> None:
        """Decide on these GPUs, and those that hang together with them."""
        self.turn.again = None
        due: dict[str, float | None] = {}
        for gpu in list(gpus.values()):
            if gpu.parked and (gpu.asked_at is None or self._is_overdue(gpu)):
                parked, gpu.parked = gpu.parked, []
                for delayed in parked:
                    client = self.model.clients[delayed.grow.client]
                    self._grow(delayed.grow, delayed)
                    self.turn.touch(client.group)
                    self._keeper.concern(client)
        if self.model.filling or any(gpu.queue for gpu in gpus.values()):
            self._extend(gpus)
        ordered = (
            [gpu for uuid, gpu in self.model.gpus.items() if uuid in gpus]
            if len(gpus) > 1
            else list(gpus.values())
        )
        for gpu in ordered:
            self.turn.again = None
            if gpu.free < 0:
                self._relieve(gpu)
            for delayed in gpu.parked:
                if delayed.obstacle == "host_memory":
                    self.turn.look_at(delayed.since + self.host_patience)
                elif delayed.obstacle == "holders":
                    self.turn.look_at(delayed.since + self.holders_patience)
            if gpu.drained:
                self._empty(gpu)
                self._dismiss(gpu)
            if gpu.queue and self.times.active:
                self._look_at_shares(gpu)
            due[gpu.uuid] = self.turn.again
        short: list[Gpu] = []
        starved = self._fill(ordered, due)
        if any(gpu.queue for gpu in ordered):
            while self._serve(short, gpus, due):
                short.clear()
        if self._new_waits:
            self._log_waits()
        self._plans.clear()
        short += starved
        for gpu in ordered:
            self.turn.again = due[gpu.uuid]
            self._watch(gpu, gpu in short)
            self.timers.set(gpu.looks, self.turn.again)

    def _extend(self, gpus: dict[str, Gpu]) -> None:
        """Add the GPUs that are waited for together with these, or that fill together."""
        quotas = self._waited_for() if self.times.counted else {}
        more = list(gpus.values())
        while more:
            gpu = more.pop()
            linked = [w.group for w in gpu.queue]
            linked += [g for g in self.model.filling.values() if gpu.uuid in g.shares]
            for group in linked:
                if len(group.shares) > 1:
                    for uuid, share in group.shares.items():
                        if uuid not in gpus:
                            gpus[uuid] = share.gpu
                            more.append(share.gpu)
                for claim in self.times.quotas(group) if quotas else ():
                    # Those of one quota wait for each other, wherever they are.
                    for uuid in quotas.pop(claim.whose, ()):
                        if uuid not in gpus:
                            gpus[uuid] = self.model.gpus[uuid]
                            more.append(self.model.gpus[uuid])

    # --- Serving -----------------------------------------------------------------------------------

    def _serve(self, short: list[Gpu], gpus: dict[str, Gpu], due: dict[str, float | None]) -> bool:
        """Grant one that waits for these GPUs, or else make room for the heads; return whether one was granted."""
        heads: dict[str, Wait] = {}
        served: list[tuple[Wait, Plan]] = []
        self._plans.clear()
        self._look_anew()
        for wait in self._waits_on(gpus):
            if wait.grow is None and wait.group.lease is not None:
                continue  # it has yet to give its old lease back
            if wait.passed_over:
                if wait.grow is None and self._is_coming(wait.group):
                    self._lead(wait, heads)
                continue
            first = next(iter(self.uuids(wait)), None)
            self.turn.again = None if first is None else due.get(first)
            granted = self._serve_one(wait, heads, served, short)
            if first is not None:
                due[first] = self.turn.again
            if granted:
                return True
        # Last, so that it takes no room from one whose turn goes on.
        for wait, plan in served:
            if self._may_fill(wait, plan):
                self._admit(wait, False, filling=True)
                return True
        return False

    def _waits_on(self, gpus: dict[str, Gpu]) -> list[Wait]:
        """Return those that wait for any of these GPUs, in order."""
        if len(gpus) == 1:
            return next(iter(gpus.values())).queue
        found = {wait: None for gpu in gpus.values() for wait in gpu.queue}
        return sorted(found, key=place)

    def _serve_one(
        self,
        wait: Wait,
        heads: dict[str, Wait],
        served: list[tuple[Wait, Plan]],
        short: list[Gpu],
    ) -> bool:
        if wait.not_before > self.turn.now:
            self.turn.look_at(wait.not_before)
            return False
        if self.times.active and self._is_limited(wait):
            if wait.barrier is not None and len(wait.group.shares) > 1:
                # Others have made way for it. On its other GPUs, they would come back in between, time after time.
                self._lead(wait, heads)
            return False
        if self._is_barred(wait):
            return False
        ahead = [heads[u] for u in self.uuids(wait) if u in heads] if heads else None
        if self._fits(wait):
            continues = ahead is not None and self._continues(wait, ahead)
            if (not ahead or continues or self._may_pass(wait, ahead)) and self._read(wait):
                self._admit(wait, bool(ahead) and continues)
                return True
        elif not ahead:
            plan = self._plans[wait] = self.plan(wait)
            if plan.short:
                short += [gpu for gpu, _ in plan.short]
                if not self._press(plan):
                    return False
            else:
                if self._carry_out(plan):
                    self._plans.clear()
                served.append((wait, plan))
        elif self._continues(wait, ahead):
            self._let_grow(wait)
        self._lead(wait, heads)
        return False

    def _lead(self, wait: Wait, heads: dict[str, Wait]) -> None:
        """Let nobody who comes later postpone one that waits, on the GPUs where it is the first."""
        if wait.barrier is None and not any(uuid in heads for uuid in self.uuids(wait)):
            wait.barrier = self.model.last_lease
        for uuid in self.uuids(wait):
            heads.setdefault(uuid, wait)
        self._reserve(wait)

    def _look_at_shares(self, gpu: Gpu) -> None:
        """Count what the holders have had, metered or not: who is below its request changes by itself."""
        for group in gpu.holders.values():
            if not group.metered or group.overdue:
                self._count_time(group)
        self.turn.look_at(self.turn.now + LOOK)

    def _is_limited(self, wait: Wait) -> bool:
        """Whether its group has had its limit of the GPU's time."""
        limited = 0.0
        if wait.for_lease:
            for uuid in wait.group.shares:
                until = self.times.throttled_until(wait.group, uuid, self.turn.now)
                if (
                    until is not None
                    and until > self.turn.now
                    and not self._takes_turns(wait, uuid)
                ):
                    limited = max(limited, until)
        if bool(limited) != bool(wait.limited_until):
            for gpu in self._gpus_of(wait):
                self.turn.crowded[gpu.uuid] = gpu
        wait.limited_until = limited
        if limited == 0.0:
            return False
        self.turn.look_at(limited)
        return True

    def _takes_turns(self, wait: Wait, uuid: str) -> bool:
        """Whether a holder uses the same limit: it would use it up for ever, so its lease is waited for as any other.

        The paces keep both within it.
        """
        whose = self.times.limited_by(wait.group, uuid, self.turn.now)
        return any(
            claim.whose == whose
            for other in self.model.gpus[uuid].holders.values()
            if other is not wait.group
            for claim in self.times.of(other)
        )

    def _let_grow(self, wait: Wait) -> None:
        """Make room for one that gave its lease up to grow within its turn: from those that do not run either.

        Its memory stays until the turn is over, so to let it queue would leave the GPU idle for that long.
        """
        plan = self.plan(wait, waiters=True)
        if plan.short:
            return
        # A whole cell's turn is long: the others' end first.
        runs = plan.later or any(g.runs for g in plan.revoke)
        if (wait.group.exclusive or not runs) and self._carry_out(plan):
            self._plans.clear()

    def _relieve(self, gpu: Gpu) -> None:
        """Work an over-commitment down: re-attached leases, or foreign use that grew."""
        over = -gpu.free
        idle: list[tuple[tuple[float, ...], Share]] = []
        leased: list[Group] = []
        for share in gpu.shares.values():
            group = share.group
            if group.lease is None:
                over -= share.leaving
                if share.movable:
                    idle.append((self.policy.victim_rank(group), share))
            elif group.overdue or group.stuck is not None:
                continue  # what it has outgrown may be what it is stuck for
            elif group.yielding:
                over -= share.resident + share.arriving
            else:
                leased.append(group)
        evict: list[tuple[Share, int]] = []
        idle.sort(key=lambda item: item[0])
        for _, share in idle:
            size = min(over, share.movable)
            if size <= 0:
                break
            over -= size
            when = self._evictable_at(share)
            if when <= self.turn.now:
                evict.append((share, size))
            else:
                self.turn.look_at(when)
        revoke: list[Group] = []
        # Within the reserve nothing can fail; what others hold varies by that much.
        leased.sort(key=lambda g: (g.runs, -g.turn))
        for group in leased:
            if over <= gpu.reserve:
                break
            share = group.shares[gpu.uuid]
            if share.resident + share.arriving > 0:
                over -= share.resident + share.arriving
                revoke.append(group)
        if (evict or revoke) and self._is_fresh(gpu):
            for group in revoke:
                self._revoke(group)
            for share, size in evict:
                self._evict(share, size)

    # --- Telling -----------------------------------------------------------------------------------

    def _tell_contended(self) -> None:
        """Say to the holders, where it changed, whether other groups wait for their GPUs or run there."""
        touched = self.turn.touched
        for gpu in self.turn.crowded.values():
            gpu.waiting = len({w.group.id for w in gpu.queue if w.logged and self.counts(w)})
            crowd = (min(gpu.waiting, 2), min(len(gpu.holders), 2))
            if crowd != gpu.crowd:
                gpu.crowd = crowd
                self._tell_holders(gpu, touched)
        self.turn.crowded.clear()
        for group in touched.values():
            if group.lease is not None and self._may_be_told(group):
                waiting = self._others_waiting(group)
                beside = 0
                for share in group.shares.values():
                    beside = max(beside, len(share.gpu.holders) - 1)
                for client in group.clients.values():
                    self._tell(client, waiting, beside)

    def _may_be_told(self, group: Group) -> bool:
        """Whether a holder may have been told otherwise, though nothing changed for all on its GPU."""
        if self.turn.untold.pop(group.id, None) is not None or group.wishes.exclusive:
            return True
        for share in group.shares.values():
            if share.gpu.queue:
                return True
        return len(group.shares) != 1

    def _tell_holders(self, gpu: Gpu, apart: dict[str, Group]) -> None:
        """Tell the holders of one GPU; those for whom more than that counts are to be told apart."""
        audience = gpu.audience
        if audience is None:
            audience = gpu.audience = Audience.of(gpu.holders.values())
        themselves = {w.group.id: w.group for w in gpu.queue if w.group.id in gpu.holders}
        if themselves or audience.apart:
            for name, group in gpu.holders.items():
                if name in themselves or name in audience.apart:
                    apart[name] = group
        spared = {n for group in themselves.values() for n in group.clients}
        waiting, beside = gpu.waiting, len(gpu.holders) - 1
        some, several = waiting > 0, beside > 0
        out = self.turn.decisions
        # They may be many: as ``_tell`` does, without asking.
        for number, client in audience.alike.items():
            if (client.contended > 0) is some and (client.beside > 0) is several:
                continue
            if number not in spared:
                client.contended, client.beside = waiting, beside
                out.append(Contended(number, waiting, beside))

    def _others_waiting(self, group: Group) -> int:
        """Return how many other groups wait for its GPUs."""
        if group.exclusive:
            return 0  # nobody is to go quiet for them
        if len(group.shares) == 1:
            gpu = next(iter(group.shares.values())).gpu
            waits = gpu.waiting and any(
                w.group is group and w.logged and self.counts(w) for w in gpu.queue
            )
            return gpu.waiting - bool(waits)
        return len(
            {
                w.group.id
                for s in group.shares.values()
                for w in s.gpu.queue
                if w.logged and w.group is not group and self.counts(w)
            }
        )

    def _log_waits(self) -> None:
        """Those who were not served at once do wait, unless only a reading is out."""
        explainer = reasons.Explainer(self, self.turn.now, self._plans)
        for wait in list(self._new_waits):
            if any(g.asked_at is not None for g in self._gpus_of(wait)) and self._fits(wait):
                continue
            self._new_waits.remove(wait)
            wait.logged = True
            for gpu in self._gpus_of(wait):
                self.turn.crowded[gpu.uuid] = gpu
            self.turn.log("wait", wait.group, reason=explainer.reason(wait))

    def _on_notice(self, event: Notice) -> None:
        self.model.notices.append((self.turn.now, event))
        self.turn.decisions.append(
            Log("notice", event.group, {"code": event.code, "params": event.params})
        )

    def _tell_failure(self) -> None:
        failure, self.policy.failure = self.policy.failure, None
        if failure is not None:
            name, error = failure
            self._on_notice(
                Notice(
                    "",
                    "policy_failed",
                    {"policy": name, "error": error, "instead": self.policy.name},
                )
            )
