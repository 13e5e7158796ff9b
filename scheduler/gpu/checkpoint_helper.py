# SPDX-License-Identifier: BSD-3-Clause
"""Has the driver checkpoint and restore processes, through one helper process and with a deadline for each step.

The helper (csrc/hibernator) is needed because the driver's calls may take long, may never end, and may crash the
calling process. It is started when first needed, and again if it ends. Or it is a service with more rights than this
process, to which this process connects. The state of a process in the driver is never assumed, but asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..core.refusals import NO_ROOM, WHY
from ..protocol.wire import gpu_bytes
from . import checked_drivers
from . import checkpoint_support as ability
from .checkpoint_support import Ability
from .drivers import Driver, DriverError, libraries
from .helper_process import GONE, Answer, Helper, HelperError, HelperProcess
from .remote_helper import RemoteHelper
from .targets import Peer, Target

log = logging.getLogger(__name__)

#: Results of the driver (cuda.h) that mean more than a failure.
OPERATING_SYSTEM, ILLEGAL_STATE, NOT_READY, NOT_PERMITTED, NOT_SUPPORTED = 304, 401, 600, 800, 801
#: The numbers of processes that are checkpointed, and restored, at the same time.
HIBERNATING, WAKING = 4, 8
#: With this many steps that do not end, no other process hibernates: the helper has 64 threads, and waking comes first.
MOST_STUCK = 32
#: Seconds before a failed restore or unlock is tried again, because other memory may still be leaving.
PAUSES = (0.5, 1.0, 2.0)
#: Seconds between questions to a driver that is busy with a step.
POLL = 0.05
#: Seconds for which a restore waits for promised room, because other memory may still be leaving.
ROOM_PATIENCE = 5.0
#: How often one call continues with a new helper after the previous helper ended.
LIVES = 3
#: Seconds for which a service that was lost may take to come back.
RETURN = 10.0
#: What to do if the driver was not permitted to checkpoint a process for a service.
SERVICE_HINT = (
    "the hibernator may lack CAP_SYS_PTRACE or CAP_DAC_OVERRIDE, or a security module may forbid it"
)
#: What the helper answers, besides a result of the driver, if it may not use a process: codes of `refusals.WHY`.
REFUSALS = frozenset({"container", "debugger"})


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The deadline of each step, in seconds."""

    #: The helper's first answer, before which it loads the driver.
    start: float = 20.0
    #: The process itself answers after earlier requests have ended, which may be the longest of these steps.
    state: float = 30.0
    #: In addition to the timeout that the driver gets.
    lock: float = 3.0
    #: 24 GiB took 13 to 15 s on an H200; 8 GiB that had been evicted first took 0.6 s. The first checkpoint also waits
    #: for the helper's driver to initialise.
    checkpoint: float = 30.0
    #: In the same cases, 5 to 6 s, and 0.5 s.
    restore: float = 30.0
    unlock: float = 10.0
    #: The helper's exit, which waits for steps that are under way.
    close: float = 5.0


class Outcome(NamedTuple):
    """The result of a call.

    Attributes
    ----------
    ok
        Whether the process is hibernated (or awake) now.
    code
        If not, the reason: a code of `refusals.WHY`, or `refusals.NO_ROOM`.
    text
        If not, the reason as a sentence.
    seconds
        The duration.
    """

    ok: bool
    code: str
    text: str
    seconds: float


class _Operation:
    """The hibernation or the wake of a process. It continues to its end even if no caller waits for it any more."""

    def __init__(self, target: Target, optional: bool = False) -> None:
        self.target = target
        #: Whether it ends for the next operation on the process, unless it has begun.
        self.optional = optional
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self.outcome: asyncio.Future[Outcome] = self._loop.create_future()
        #: Whether a step has begun, so that there is something to undo.
        self.begun = False
        #: Whether a step overran, and the caller has this result.
        self.late = False
        #: Lets another process's operation begin; called once.
        self.leave: Callable[[], None] | None = None
        self.task: asyncio.Task[None] | None = None

    def end(self, ok: bool, code: str = "", text: str = "") -> None:
        """Give the caller the result."""
        if not self.outcome.done():
            self.outcome.set_result(Outcome(ok, code, text, self._loop.time() - self._begun))
        if self.leave is not None:
            self.leave()
            self.leave = None

    def overdue(self, step: str, seconds: float) -> None:
        """Stop waiting for a step."""
        self.late = True
        text = f"the {step} of {self.target} has not ended within {seconds:g} s, and goes on"
        log.warning("%s", text)
        self.end(False, "stuck", text)


class _Failed(Exception):
    """Return a result for a step that failed with this driver's result, or that could not be taken."""

    def __init__(self, code: str, text: str, step: str = "", result: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.step = step
        self.result = result


class Hibernator:
    """Hibernates and wakes processes. It belongs to one event loop.

    Parameters
    ----------
    driver
        The driver that the processes use.
    lock_timeout
        Seconds in which the work of a process must end when it is locked.
    deadlines
        Seconds after which each step is no longer waited for.
    program
        The helper; None: the installed one.
    service
        The socket of a helper that is a service of its own; None: this process starts the helper.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        lock_timeout: float = 2.0,
        deadlines: Deadlines | None = None,
        program: Path | None = None,
        service: Path | None = None,
    ) -> None:
        self._driver = driver
        self._lock_timeout = lock_timeout
        self._deadlines = deadlines or Deadlines()
        self._program = program
        self._service = service
        #: Seconds for which a call waits until an earlier operation on its process has ended.
        self._patience = self._deadlines.checkpoint + self._deadlines.restore
        self._helper: Helper | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        #: The driver's version and the GPUs' names, once they were read.
        self._nvml: tuple[str | None, Sequence[str]] | None = None
        self._under_way: dict[int, _Operation] = {}
        #: Processes without a lock under way that was requested by a helper which has ended since.
        self._known: set[int] = set()
        #: Processes that were asked to lock, and of which it is not known that they run or hibernate.
        self._locking: set[int] = set()
        #: Processes that were woken on another GPU, with both GPUs, until they hibernate again.
        self._moved: dict[int, tuple[str, str]] = {}
        self._hibernating = asyncio.Semaphore(HIBERNATING)
        self._waking = asyncio.Semaphore(WAKING)

    async def probe(
        self,
        nvml: tuple[str | None, Sequence[str]] | None = None,
        checked: Collection[str] = (),
    ) -> Ability:
        """Find out whether processes can hibernate on this machine.

        Parameters
        ----------
        nvml
            The driver's version and the GPUs' names from NVML; None: read them the first time.
        checked
            Versions that count as checked, besides those in `checked_drivers`.
        """
        try:
            helper = await self._start()
            answer = await asyncio.wait_for(helper.ask("driver"), self._deadlines.start)
        except HelperError as error:
            return Ability(False, "helper", f"{error}; {self._remedy()}")
        except asyncio.TimeoutError:
            text = f"the driver does not say its version within {self._deadlines.start:g} s"
            return Ability(False, "helper", text)
        if answer.value == "busy":
            return Ability(False, "helper", "the hibernator takes no more requests now")
        if answer.result not in (0, NOT_SUPPORTED):
            return Ability(False, "driver", f"the driver does not say its version: {answer.name}")
        if nvml is None and self._nvml is None:
            loop = asyncio.get_running_loop()
            self._nvml = await loop.run_in_executor(None, _ask_nvml, self._driver.nvml)
        nvml = nvml or self._nvml or (None, [])
        checked = {*checked, *checked_drivers.allowed(os.environ)}
        return ability.judge(int(answer.value), answer.result == 0, *nvml, checked)

    def _remedy(self) -> str:
        if self._service is None:
            return "install jupyter-gpushare again"
        return "an administrator can start it: gpushare hibernator"

    def refuses(self, target: Target) -> str | None:
        """Return why a process must not hibernate: a code of `refusals.WHY`, or None. Only reads ``/proc``."""
        if self._service is not None and isinstance(target, Peer):
            return target.refusal_by_service()
        return target.refusal()

    async def hibernate(self, target: Target) -> Outcome:
        """Checkpoint a process of which no thread is in the driver. If that fails, the process is as before.

        If a step overran, the process is unlocked as soon as that step has ended.
        """
        if code := self.refuses(target):
            return Outcome(False, code, WHY[code], 0.0)
        if sum(operation.late for operation in self._under_way.values()) >= MOST_STUCK:
            return Outcome(False, "stuck", "the hibernation of too many others does not end", 0.0)
        self._known.add(target.key)
        return await self._run(
            _Operation(target, optional=True), self._hibernate, self._hibernating
        )

    async def wake(
        self,
        target: Target,
        pair: tuple[str, str] | None = None,
        has_room: Callable[[], bool] | None = None,
    ) -> Outcome:
        """Restore a process from any state in which an earlier call has left it.

        Parameters
        ----------
        target
            The process.
        pair
            UUIDs, as in NVML, of the previous GPU of the process and of its next one; None: the same GPU. With a pair,
            a restore is tried once, and it is an error if the process does not need one, because it may then be woken
            on the previous GPU.
        has_room
            Returns whether the GPU has room for the process; called in a thread. The restore waits some seconds for
            that, because a restore that lacks room may fail for good (NVIDIA/cuda-checkpoint issue 44).
        """

        async def work(operation: _Operation) -> None:
            await self._awaken(operation, pair, has_room)

        return await self._run(_Operation(target), work, self._waking)

    async def close(self) -> None:
        """End the helper, after waiting some seconds for steps under way. This wakes no process."""
        self._closed = True
        async with self._starting:
            helper = self._helper
        if helper is not None:
            await helper.close(self._deadlines.close)
        tasks = [operation.task for operation in self._under_way.values() if operation.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- One operation at a time for each process ---------------------------------------------

    async def _run(
        self,
        operation: _Operation,
        work: Callable[[_Operation], Awaitable[None]],
        places: asyncio.Semaphore,
    ) -> Outcome:
        target = operation.target
        if not await self._alone(operation):
            text = f"an earlier step of {target} has not ended within {self._patience:g} s"
            operation.end(False, "stuck", text)
            return operation.outcome.result()
        self._under_way[target.key] = operation
        operation.task = asyncio.create_task(self._carry_out(operation, work, places))
        # Not in the task itself, which may be cancelled before it has begun.
        operation.task.add_done_callback(lambda _: self._forget(operation))
        # The caller may be cancelled, but not the operation.
        return await asyncio.shield(operation.outcome)

    async def _alone(self, operation: _Operation) -> bool:
        """Wait until no other operation on the process is under way; return whether that is so."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience
        while (before := self._under_way.get(operation.target.key)) is not None:
            assert before.task is not None
            if before.optional and not before.begun:
                before.task.cancel()
            await asyncio.wait({before.task}, timeout=until - loop.time())
            if not before.task.done():
                return False
        return True

    async def _carry_out(
        self,
        operation: _Operation,
        work: Callable[[_Operation], Awaitable[None]],
        places: asyncio.Semaphore,
    ) -> None:
        try:
            await places.acquire()
            operation.leave = places.release
            await work(operation)
            operation.end(True)
        except _Failed as failed:
            operation.end(False, failed.code, str(failed))
        except HelperError as error:
            operation.end(False, self._lost(operation.target), str(error))
        except Exception:
            # An unexpected error also counts as a result, because the caller must have the process woken.
            log.exception("a step of the hibernator's failed")
            operation.end(False, self._lost(operation.target), WHY["helper"])

    def _lost(self, target: Target) -> str:
        """Return the code of an operation without a helper. With "helper", the caller may take a process as awake."""
        return "stuck" if target.key in self._locking else "helper"

    def _forget(self, operation: _Operation) -> None:
        del self._under_way[operation.target.key]
        operation.end(False, "busy", "it was given up, since it was not wanted any more")

    # --- Steps --------------------------------------------------------------------------------

    async def _hibernate(self, operation: _Operation) -> None:
        if not await self._lock(operation):
            self._locking.discard(operation.target.key)
            return
        error: _Failed | HelperError | None = None
        try:
            if not operation.late:
                await self._step(operation, "checkpoint", self._deadlines.checkpoint)
            if not operation.late:
                self._locking.discard(operation.target.key)
                return
        except (_Failed, HelperError) as raised:
            error = raised
        try:
            await self._awaken(operation)
        except (_Failed, HelperError) as still:
            if operation.target.has_ended():
                raise
            text = f"{error}; and it is not awake again: {still}" if error else str(still)
            # It may be in any state but running, so the caller must have it woken.
            raise _Failed("stuck", text) from None
        if error is not None:
            raise error

    async def _lock(self, operation: _Operation) -> bool:
        """Lock it, or find it locked by an earlier scheduler. Return False if it hibernates already."""
        self._moved.pop(operation.target.key, None)
        try:
            await self._lock_once(operation)
            return True
        except _Failed as failed:
            if failed.result != ILLEGAL_STATE:
                raise
            error: _Failed | HelperError = failed
        except HelperError as ended:
            error = ended
        state = await self._state(operation)
        if state not in ("locked", "checkpointed"):
            raise error
        return state == "locked"

    async def _lock_once(self, operation: _Operation) -> None:
        timeout = self._lock_timeout
        words = str(max(1, round(timeout * 1000)))
        await self._step(operation, "lock", timeout + self._deadlines.lock, words)

    async def _awaken(
        self,
        operation: _Operation,
        pair: tuple[str, str] | None = None,
        has_room: Callable[[], bool] | None = None,
    ) -> None:
        """Unlock it, so that it may call its driver again. After each failure, its state is asked for again."""
        lives, pauses = LIVES, iter(PAUSES)
        while True:
            try:
                await self._awaken_once(operation, pair, has_room)
                return
            except HelperError:
                lives -= 1
                if lives == 0:
                    raise
            except _Failed as failed:
                # A step that was under way may have ended between the question and the answer.
                final = failed.step not in ("restore", "unlock") or operation.target.has_ended()
                moved = pair is not None and failed.step == "restore"
                pause = next(pauses, None)
                if final or pause is None or (moved and failed.result != ILLEGAL_STATE):
                    raise
                log.info("%s; it is tried again in %g s", failed, pause)
                await asyncio.sleep(pause)

    async def _awaken_once(
        self,
        operation: _Operation,
        pair: tuple[str, str] | None,
        has_room: Callable[[], bool] | None,
    ) -> None:
        target = operation.target
        state = await self._settled(operation)
        if state == "running" and target.key not in self._known:
            # A helper that has ended may have requested a lock that is still under way. This request follows that lock.
            with contextlib.suppress(_Failed, HelperError):
                await self._lock_once(operation)
            state = await self._settled(operation)
        if pair is not None and state != "checkpointed" and self._moved.get(target.key) != pair:
            text = f"{target} is not hibernated, and stays on the GPU that it is on"
            raise _Failed("failed", text)
        if state == "running":
            return
        if state == "checkpointed":
            await self._await_room(target, has_room)
            await self._restore(operation, pair)
        elif state != "locked":
            raise _Failed("failed", f"the driver says that {target} has {state}")
        await self._step(operation, "unlock", self._deadlines.unlock)

    async def _await_room(self, target: Target, has_room: Callable[[], bool] | None) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while has_room is not None and not await asyncio.to_thread(has_room):
            if loop.time() > begun + ROOM_PATIENCE:
                raise _Failed(NO_ROOM, f"the GPU has no room for {target} now")
            await asyncio.sleep(POLL)

    async def _restore(self, operation: _Operation, pair: tuple[str, str] | None) -> None:
        words = []
        self._moved.pop(operation.target.key, None)
        if pair is not None:
            words.append("=".join(gpu_bytes(gpu).hex() for gpu in pair))
            # After a step that overran or a helper that ended, a request for the pair may have been carried out
            # already.
            self._moved[operation.target.key] = pair
        try:
            await self._step(operation, "restore", self._deadlines.restore, *words)
        except _Failed:
            self._moved.pop(operation.target.key, None)
            raise

    async def _settled(self, operation: _Operation) -> str:
        """Return the process's state, once no step is under way in it."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while (state := await self._state(operation)) in ("checkpointing", "restoring"):
            if loop.time() > begun + self._patience:
                text = f"{operation.target} has been {state} for {self._patience:g} s"
                raise _Failed("stuck", text)
            await asyncio.sleep(POLL)
        return state

    async def _state(self, operation: _Operation) -> str:
        return (await self._step(operation, "state", self._deadlines.state)).value

    async def _step(self, operation: _Operation, step: str, deadline: float, *words: str) -> Answer:
        helper = await self._start()
        operation.begun = True
        key = operation.target.key
        # Whether this is the first request of which it is not known whether it has locked the process.
        first = step == "lock" and key not in self._locking
        if step == "lock":
            self._known.discard(key)
            self._locking.add(key)
        loop = asyncio.get_running_loop()
        timer, begun = loop.call_later(deadline, operation.overdue, step, deadline), loop.time()
        try:
            answer = await helper.ask(step, operation.target, *words)
        finally:
            timer.cancel()
        log.debug(
            "%s of %s: %s in %.3f s", step, operation.target, answer.name, loop.time() - begun
        )
        if step != "state":
            self._known.add(key)
        refused = first and answer.result not in (0, ILLEGAL_STATE)
        if refused or (answer.result == 0 and (step == "unlock" or answer.value == "running")):
            self._locking.discard(key)
        if answer.result != 0:
            raise self._failure(operation.target, step, answer)
        return answer

    def _failure(self, target: Target, step: str, answer: Answer) -> _Failed:
        said = f"the driver's {step} of {target} failed with {answer.name}"
        code = "failed"
        if answer.value == GONE or target.has_ended():
            said = f"{target} has ended"
        elif answer.value in REFUSALS:
            code, said = answer.value, WHY[answer.value]
        elif answer.value == "busy":
            code, said = "stuck", f"{target} has to wait: the hibernator takes no more requests now"
        elif step == "lock" and answer.result == NOT_READY:
            code, said = "busy", f"{target} was at work for {self._lock_timeout:g} s"
        elif answer.result == NOT_PERMITTED or (
            step == "lock" and answer.result == OPERATING_SYSTEM
        ):
            # A process with the permission to lock may also take the other steps; the hint has more than permissions.
            code = "permission" if step == "lock" else "failed"
            said += f": {ability.hint() if self._service is None else SERVICE_HINT}"
        return _Failed(code, said, step, answer.result)

    async def _start(self) -> Helper:
        async with self._starting:
            if self._closed:
                raise HelperError("the scheduler ends")
            if self._helper is None or self._helper.ended:
                if self._service is not None:
                    self._helper = await self._connect(self._service)
                else:
                    self._helper = await self._spawn()
            return self._helper

    async def _spawn(self) -> Helper:
        try:
            program = self._program or libraries().hibernator
        except DriverError as error:
            raise HelperError(str(error)) from None
        return await HelperProcess.start(program, self._driver.cuda)

    async def _connect(self, path: Path) -> Helper:
        loop = asyncio.get_running_loop()
        # A service that was there is probably being replaced.
        until = loop.time() + (0.0 if self._helper is None else RETURN)
        while True:
            try:
                return RemoteHelper.connect(path)
            except HelperError:
                if self._closed or loop.time() > until:
                    self._helper = None
                    raise
            await asyncio.sleep(POLL)


def _ask_nvml(path: Path | None) -> tuple[str | None, list[str]]:
    """Return the driver's version and the GPUs' names as far as NVML has them."""
    if path is None:
        return None, []
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        import pynvml
    except (OSError, ImportError):
        return None, []
    version, names = None, []
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            version = _text(pynvml.nvmlSystemGetDriverVersion())
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                names.append(_text(pynvml.nvmlDeviceGetName(handle)))
        finally:
            pynvml.nvmlShutdown()
    return version, names


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
