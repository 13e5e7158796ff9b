# SPDX-License-Identifier: BSD-3-Clause
"""The hibernator (csrc/hibernator), which calls the driver. Requests and answers are lines of text."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import NamedTuple

from .targets import Target

log = logging.getLogger(__name__)

#: The result of a request that was not sent (CUDA_ERROR_OPERATING_SYSTEM).
NOT_SENT = 304
#: What a hibernator answers if a process has ended (csrc/hibernator/target.h).
GONE = "gone"


class HelperError(Exception):
    """The helper does not run; the message is one sentence."""


class Answer(NamedTuple):
    """The helper's answer to one request."""

    result: int
    name: str
    value: str = ""


#: The answers for a request that was not sent because its process has ended, or because that is not possible now.
ENDED = Answer(NOT_SENT, "CUDA_ERROR_OPERATING_SYSTEM", GONE)
BUSY = Answer(NOT_SENT, "CUDA_ERROR_NOT_READY", "busy")


class Helper(ABC):
    """A hibernator that answers requests, until it ends."""

    def __init__(self) -> None:
        #: Why it no longer answers; empty while it does.
        self.ended = ""
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    async def ask(self, step: str, target: Target | None = None, *words: str) -> Answer:
        """Send a request, wait for the answer without a deadline, and return it.

        Parameters
        ----------
        step
            The command (csrc/hibernator/serve.h).
        target
            The process; None: the command is about none.
        words
            The rest of the command.

        Raises
        ------
        HelperError
            It ended first.
        """
        if self.ended:
            raise HelperError(self.ended)
        number = next(self._ids)
        refused = self._send([str(number), step], target, words)
        if refused is not None:
            return refused
        # Not before the request is sent: if the helper ended meanwhile, nothing would retrieve the error of the future.
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        return await answer

    @abstractmethod
    def _send(
        self, begin: list[str], target: Target | None, words: tuple[str, ...]
    ) -> Answer | None:
        """Send a request, or return why it cannot be sent."""

    @abstractmethod
    async def close(self, patience: float) -> None:
        """Let it end, for this many seconds."""

    def _answer(self, line: str) -> None:
        number, result, name, *value = line.split()
        answer = Answer(int(result), name, *value)
        waiting = self._waiting.pop(int(number), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _end(self, why: str) -> None:
        """Fail all requests that were not answered."""
        self.ended = why
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(HelperError(why))
        self._waiting.clear()


class HelperProcess(Helper):
    """A hibernator that is a child of this process, and has its rights."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__()
        self.process = process
        self._stderr: deque[str] = deque(maxlen=1)
        self._reading = asyncio.create_task(self._read())
        self._logging = asyncio.create_task(self._log())

    @classmethod
    async def start(cls, program: Path, driver: Path) -> HelperProcess:
        """Start a helper with this driver library."""
        environ = {**os.environ, "GPUSHARE_DISABLE": "1"}
        environ.pop("LD_PRELOAD", None)
        try:
            process = await asyncio.create_subprocess_exec(
                *(program, "--driver", driver),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environ,
                # A signal to the terminal's session must not end it in the middle of a step.
                start_new_session=True,
            )
        except OSError as error:
            raise HelperError(f"{program} cannot be run: {error.strerror}") from None
        return cls(process)

    def _send(
        self, begin: list[str], target: Target | None, words: tuple[str, ...]
    ) -> Answer | None:
        process = [] if target is None else [str(target.pid)]
        if process == ["0"]:
            return Answer(NOT_SENT, "CUDA_ERROR_OPERATING_SYSTEM", "container")
        if target is not None and target.has_ended():
            # Another process may get its number.
            return ENDED
        assert self.process.stdin is not None
        # These are a few bytes, so there is no need to wait for them.
        self.process.stdin.write(f"{' '.join((*begin, *process, *words))}\n".encode("ascii"))
        return None

    async def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            async for line in self.process.stdout:
                self._answer(line.decode("ascii", "replace"))
        except (TypeError, ValueError):
            # It is unknown which request this answered, and that one would wait forever.
            log.warning("the checkpoint helper sent an invalid answer and is killed")
            self._kill()
        status = await self.process.wait()
        await self._logging
        said = f": {self._stderr[0]}" if self._stderr else ""
        self._end(f"the hibernator ended with status {status}{said}")

    async def _log(self) -> None:
        assert self.process.stderr is not None
        while True:
            try:
                line = await self.process.stderr.readline()
            except ValueError:
                continue  # too long for a line: it was dropped
            if not line:
                return
            text = line.decode("utf-8", "replace").strip().removeprefix("gpushare: ")
            self._stderr.append(text)
            log.warning("the hibernator: %s", text)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def close(self, patience: float) -> None:
        """Let it end, and kill it if it has not ended after this many seconds."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        done, _ = await asyncio.wait({self._reading}, timeout=patience)
        if not done:
            log.warning("the hibernator (pid %d) does not end; killing it", self.process.pid)
            self._kill()
            await self._reading
