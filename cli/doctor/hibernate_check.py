# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare doctor --hibernate-check``: checks whether an untested driver can hibernate processes and wake them.

It runs in a separate process, because the driver may hang the process that calls it::

    python -m jupyter_gpushare.cli.doctor.hibernate_check CUDA NVML

It prints one JSON object: the numbers of what was done, or ``error`` with a sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ...scheduler.gpu.checkpoint_helper import Hibernator, Outcome
from ...scheduler.gpu.devices import Devices
from ...scheduler.gpu.drivers import Driver
from ...scheduler.gpu.targets import Target

PROBE = Path(__file__).with_name("probe.py").resolve()
#: Number of times that a process is hibernated and woken.
CYCLES = 5
#: GPU memory that a hibernated process may still use, in bytes; 0.1 MiB on an H200.
LEFT = 16 << 20
#: Seconds that a process has to start, to respond, or to end after it was killed.
PATIENCE = 30.0
#: Seconds between two queries of NVML.
PAUSE = 0.1


class CheckError(Exception):
    """The driver cannot hibernate processes; the message is one sentence."""


class Holder:
    """A test process that holds memory on the first GPU."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def answer(self) -> dict[str, Any]:
        """Return the next line that the process prints."""
        assert self.process.stdout is not None
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)
        except asyncio.TimeoutError:
            raise CheckError(
                f"a test process on the GPU did not respond within {PATIENCE:g} s"
            ) from None
        if not line:
            raise CheckError("a test process on the GPU exited unexpectedly")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise CheckError(found["error"])
        return found

    async def verify(self) -> None:
        """Make the process compare all of its memory and then overwrite it."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        if not (await self.answer())["kept"]:
            raise CheckError("a process that was hibernated woke with different data")

    async def kill(self) -> None:
        """Kill the process as ``kill -9`` does."""
        self.process.kill()
        try:
            await asyncio.wait_for(self.process.wait(), PATIENCE)
        except asyncio.TimeoutError:
            raise CheckError(
                f"process {self.process.pid} was killed while it was hibernated, but has not exited; the machine may "
                "need a restart"
            ) from None


@asynccontextmanager
async def holder(cuda: Path) -> AsyncIterator[Holder]:
    """Start a process that holds memory, and kill it at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", str(PROBE), "hold", str(cuda)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "GPUSHARE_DISABLE": "1"},
    )
    try:
        made = Holder(process)
        await made.answer()
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def done(step: Awaitable[Outcome]) -> None:
    """Wait for a step, and raise an error if it failed."""
    outcome = await step
    if not outcome.ok:
        raise CheckError(outcome.text)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until NVML reports something."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise CheckError(f"{what} for {PATIENCE:g} s")
        await asyncio.sleep(PAUSE)


async def check(driver: Driver) -> dict[str, Any]:
    """Hibernate and wake a process, then kill one that was woken and one that is hibernated."""
    devices = Devices(driver.nvml)
    gpus = [found.gpu for found in devices.start()]
    hibernator = Hibernator(driver)

    def held(pid: int) -> int:
        return sum((devices.processes(gpu) or {}).get(pid, 0) for gpu in gpus)

    async def away(one: Holder) -> None:
        pid = one.process.pid
        await done(hibernator.hibernate(Target(pid)))
        await until(lambda: held(pid) <= LEFT, "a hibernated process kept its memory on the GPU")

    try:
        async with holder(driver.cuda) as one:
            for _ in range(CYCLES):
                await away(one)
                await done(hibernator.wake(Target(one.process.pid)))
                await one.verify()
            await one.kill()
            woken = one.process.pid
        async with holder(driver.cuda) as one:
            await away(one)
            await one.kill()
            asleep = one.process.pid
        await until(
            lambda: held(woken) + held(asleep) == 0,
            "processes that were killed kept memory on the GPU",
        )
        async with holder(driver.cuda) as one:
            await away(one)
            await done(hibernator.wake(Target(one.process.pid)))
            await one.verify()
    finally:
        await hibernator.close()
        devices.stop()
    return {"cycles": CYCLES + 1, "killed": 2}


def main(cuda: str, nvml: str) -> None:
    """Run the check and print the result."""
    driver = Driver(Path(cuda), Path(nvml), simulated=False)
    try:
        found = asyncio.run(check(driver))
    except CheckError as error:
        found = {"error": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
