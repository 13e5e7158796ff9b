# SPDX-License-Identifier: BSD-3-Clause
"""Keeps a scheduler running, and a connection to it, for as long as a Jupyter server runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from .address import TAKEN, socket_path, too_long
from .async_client import AsyncControlClient
from .client import ControlError, SchedulerUnreachable

log = logging.getLogger(__name__)

State = Literal["stopped", "connecting", "hosting", "attached"]

#: Seconds between attempts to get a scheduler: doubled from the first to the last.
FIRST_PAUSE = 0.02
LAST_PAUSE = 1.0
#: The last pause if the scheduler does not accept the identity of this process, or its Hub does not answer.
STRANGER_PAUSE = 10.0
#: The last pause if the scheduler reports invalid settings, which only a user can correct.
HOPELESS_PAUSE = 30.0
#: Seconds in which a scheduler that was started must answer.
START_TIMEOUT = 20.0
#: Seconds that a request waits for a scheduler that is just being replaced.
PATIENCE = 3.0
#: Seconds between two liveness checks of the scheduler; seconds in which it must answer; and the number of failures in
#: a row after which a scheduler that was started here is replaced.
LOOK_PAUSE, ANSWER_TIMEOUT, MOST_MISSING = 3.0, 5.0, 2
#: Seconds in which a scheduler must end once its standard input is closed. It first waits for another host's scheduler.
STOP_TIMEOUT = 10.0


class SchedulerHost:
    """Connects to the user's scheduler, and starts it if none runs.

    Parameters
    ----------
    path
        The scheduler's socket; default: the user's.
    environ
        The environment of a scheduler that is started here; default: that of this process.
    start
        Whether to start a scheduler if none runs, or a function that returns this each time. Otherwise, only attach.
    arguments
        Further arguments of the scheduler's command.
    on_connect
        Called with the connection each time there is a new one.
    on_disconnect
        Called each time it has ended.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        start: bool | Callable[[], bool] = True,
        arguments: tuple[str, ...] = (),
        on_connect: Callable[[AsyncControlClient], None] | None = None,
        on_disconnect: Callable[[], None] | None = None,
    ) -> None:
        self.environ = dict(os.environ if environ is None else environ)
        self.path = path or socket_path(self.environ)
        self._may_start = start if callable(start) else lambda: start
        self._arguments = arguments
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._child: asyncio.subprocess.Process | None = None
        #: A scheduler that stands by to take over from another host's scheduler.
        self._heir: asyncio.subprocess.Process | None = None
        self._client: AsyncControlClient | None = None
        self._connected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._hopeless = False
        #: Why there is no connection: one sentence, or empty.
        self.trouble = ""
        #: The identity of this process at the scheduler (docs/reference/control.md, ``whoami``).
        self.me: dict[str, Any] = {}

    @property
    def state(self) -> State:
        """Whether this host runs the scheduler, is attached to a scheduler that another process runs, or neither."""
        if self._task is None:
            return "stopped"
        if not self._connected.is_set():
            return "connecting"
        hosting = self._child is not None and self._child.returncode is None
        return "hosting" if hosting else "attached"

    @property
    def client(self) -> AsyncControlClient | None:
        """The present connection."""
        return self._client

    async def start(self) -> None:
        """Begin to connect. This returns at once; see ``connected``."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the connection, and the scheduler if it was started here."""
        if self._task is None:
            return
        while not self._task.done():
            # Before Python 3.12, a wait_for that ends at this moment swallows the cancellation.
            self._task.cancel()
            await asyncio.wait([self._task], timeout=0.1)
        self._task = None
        await self._disconnect()
        await self._end_child()
        self._child, self._heir = self._heir, None
        await self._end_child()

    async def connected(self, timeout: float = START_TIMEOUT) -> AsyncControlClient:
        """Wait for a connection and return it.

        Raises
        ------
        SchedulerUnreachable
            There is none in time.
        """
        try:
            await asyncio.wait_for(self._connected.wait(), timeout)
        except asyncio.TimeoutError:
            reason = self.trouble or f"no scheduler is running at {self.path}"
            raise SchedulerUnreachable(reason) from None
        assert self._client is not None
        return self._client

    async def request(self, op: str, **params: Any) -> dict[str, Any]:
        """Send a control request; wait a little if the scheduler is being replaced.

        Raises
        ------
        ControlError
            The scheduler refuses it.
        SchedulerUnreachable
            There is no scheduler in time.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            client = await self.connected(max(0.0, deadline - time.monotonic()))
            try:
                return await client.request(op, **params)
            except SchedulerUnreachable:
                if client.connected or time.monotonic() > deadline:
                    raise
                # The connection ended during the request. `_run` connects to the next scheduler.
                await asyncio.sleep(FIRST_PAUSE)

    async def _run(self) -> None:
        pause, in_vain = FIRST_PAUSE, False
        while True:
            try:
                self._client = await self._connect()
            except SchedulerUnreachable as error:
                may_start = not too_long(self.path) and self._may_start()
                if may_start and in_vain:
                    # A scheduler that ends at its first request must not be started in a tight loop.
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LAST_PAUSE)
                if may_start and await self._start_child():
                    in_vain = True
                else:
                    # A file in place of the socket explains more than that the scheduler ended.
                    in_the_way = self.path.exists() and not self.path.is_socket()
                    if not self.trouble or in_the_way or not may_start:
                        self.trouble = str(error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, HOPELESS_PAUSE if self._hopeless else LAST_PAUSE)
                continue
            except ControlError as error:
                self.trouble = str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, STRANGER_PAUSE)
                continue
            except OSError as error:
                self.trouble = f"cannot reach the scheduler at {self.path}: {error}"
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE)
                continue
            self.trouble, in_vain = "", False
            begun = time.monotonic()
            self._connected.set()
            self._notify(self._on_connect, self._client)
            tasks = [
                asyncio.create_task(self._watch(self._client)),
                asyncio.create_task(self._offer_heir(self._client)),
            ]
            try:
                await self._client.wait_lost()
            finally:
                for task in tasks:
                    task.cancel()
            await self._disconnect()
            await self._adopt_heir()
            # A scheduler that ends right after its start must not be started in a tight loop.
            lasted = time.monotonic() - begun > LAST_PAUSE
            pause = FIRST_PAUSE if lasted else min(2 * pause, LAST_PAUSE)
            await asyncio.sleep(pause)

    async def _offer_heir(self, client: AsyncControlClient) -> None:
        """Start a scheduler that stands by when the scheduler of another host is about to end."""
        # A scheduler of an earlier release, or a node's, does not ask for one.
        with contextlib.suppress(ControlError):
            if too_long(self.path) or not self._may_start():
                return
            await client.request("host")
            await client.needs_heir.wait()
            if self.state == "attached":
                self._heir = await self._spawn("--stand-by")

    async def _adopt_heir(self) -> None:
        """Keep the scheduler that stood by, if it serves now."""
        heir, self._heir = self._heir, None
        if heir is not None:
            await self._end_child()
            self._child = heir
            if not await self._is_ready(heir):
                await self._end_child()

    async def _watch(self, client: AsyncControlClient) -> None:
        """Kill a scheduler that was started here if it hangs. The connection then ends, and another one is started."""
        missing = 0
        while missing < MOST_MISSING:
            await asyncio.sleep(LOOK_PAUSE)
            try:
                await asyncio.wait_for(client.request("whoami"), ANSWER_TIMEOUT)
            except (asyncio.TimeoutError, SchedulerUnreachable):
                # Another host, or the service manager, replaces a scheduler that it started.
                missing += self.state == "hosting"
            except ControlError:
                missing = 0
            else:
                missing = 0
        child = self._child
        if child is not None and child.returncode is None:
            log.warning("the scheduler (pid %d) is not responding; replacing it", child.pid)
            child.kill()

    async def _connect(self) -> AsyncControlClient:
        """Connect to a scheduler that accepts the identity of this process."""
        client = await AsyncControlClient(self.path).connect()
        try:
            self.me = await client.request("whoami")
            if self.me["needs"]:
                # The refusal of this request has the sentence for the user.
                await client.request("status")
        except BaseException:
            await client.close()
            raise
        return client

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        self._connected.clear()
        await client.close()
        self._notify(self._on_disconnect)

    def _notify(self, callback: Callable[..., None] | None, *arguments: Any) -> None:
        """Call a callback. Its exceptions must not end this host."""
        if callback is not None:
            try:
                callback(*arguments)
            except Exception:
                log.exception("a callback of the scheduler's supervisor failed")

    async def _start_child(self) -> bool:
        """Start a scheduler; return whether it is ready."""
        await self._end_child()
        self._child = await self._spawn()
        if self._child is not None and await self._is_ready(self._child):
            return True
        await self._end_child()
        return False

    async def _spawn(self, *flags: str) -> asyncio.subprocess.Process | None:
        """Start a scheduler's process."""
        environ = {**self.environ, "GPUSHARE_SOCKET": str(self.path)}
        # The scheduler does not use CUDA, so preloaded shims would only disturb it.
        environ.pop("LD_PRELOAD", None)
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "jupyter_gpushare.scheduler", "--parent-pipe", *flags, *self._arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environ,
                # Ctrl-C in the Jupyter server's terminal must not end the scheduler.
                start_new_session=True,
            )
        except OSError as error:
            self.trouble = f"cannot start the scheduler: {error}"
            log.error("%s", self.trouble)
            return None

    async def _is_ready(self, child: asyncio.subprocess.Process) -> bool:
        """Wait until a scheduler serves; return whether it does."""
        assert child.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT
        line = b"standing by"
        while line.strip() == b"standing by":
            try:
                left = deadline - time.monotonic()
                line = await asyncio.wait_for(child.stdout.readline(), left)
            except asyncio.TimeoutError:
                return False
        return line.strip() == b"ready"

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        child.stdin.close()
        try:
            status = await asyncio.wait_for(child.wait(), STOP_TIMEOUT)
        except asyncio.TimeoutError:
            log.warning("the scheduler (pid %d) did not stop in time; killing it", child.pid)
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGKILL)
            status = await child.wait()
        self._hopeless = status == 2
        if status not in (0, TAKEN, -signal.SIGTERM):
            trouble = (
                f"the scheduler exited with status {status}; see the server's log for the reason"
            )
            if trouble != self.trouble:
                log.warning("%s", trouble)
            self.trouble = trouble
