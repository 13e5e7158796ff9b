# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's hibernator over the simulated driver: real programs, whose bytes are all still there afterwards."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack

import pytest

from jupyter_gpushare.scheduler.gpu import checkpoint_helper as hibernator
from jupyter_gpushare.scheduler.gpu.checkpoint_helper import Deadlines, Hibernator, Outcome
from jupyter_gpushare.scheduler.gpu.drivers import Driver
from jupyter_gpushare.scheduler.gpu.targets import Target
from tests.support.sim import LIBRARIES, MIB, Talker, sim_env
from tests.support.stopping import go_on, stop

PATIENCE = 60.0

#: Holds data, and says at each line that it hears whether all of it is still there. `fail RULES` sets failures,
#: and `failed` has it say how many there were.
HOLDS = """
    use()
    words = np.arange(4 << 20, dtype=np.uint32) * os.getpid()
    pointer = ok(driver.cuMemAlloc(words.nbytes))
    write(pointer, words)
    say(str(os.getpid()))
    for line in sys.stdin:
        if line.startswith("failed"):
            say(str(counters().injected))
            continue
        if line.startswith("fail"):
            assert fail(line[4:].strip()) == 0
            say("done")
            continue
        say("same" if np.array_equal(read(pointer, words.size, np.uint32), words) else "lost")
        device = ok(driver.cuCtxGetDevice())
        say(bytes(ok(driver.cuDeviceGetUuid(device)).bytes).hex())
"""


class Holder(Talker):
    """A program with data on the GPU."""

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__(environment, HOLDS)
        self.pid = int(self.heard())

    def gpu(self) -> str:
        """Look whether all data is there, and return the GPU that it is on."""
        self.tell()
        assert self.heard() == "same"
        return f"GPU-{uuid.UUID(self.heard())}"

    def fail(self, rules: str) -> None:
        """Set which of its calls of the driver fail."""
        self.tell(f"fail {rules}")
        assert self.heard() == "done"

    def failed(self) -> int:
        """How many of them have failed by now, or hang."""
        self.tell("failed")
        return int(self.heard())


class Machine:
    """A simulated machine, its programs and the hibernator."""

    def __init__(self, environment: dict[str, str], stack: ExitStack) -> None:
        self.environment = environment
        self._stack = stack
        self._made: list[Hibernator] = []

    def holder(self, **environment: str) -> Holder:
        holder = Holder({**self.environment, **environment})
        self._stack.callback(holder.close)
        return holder

    def talker(self, code: str) -> Talker:
        talker = Talker(self.environment, code)
        self._stack.callback(talker.close)
        return talker

    def hibernator(self, **deadlines: float) -> Hibernator:
        driver = Driver(LIBRARIES / "libcuda.so.1", LIBRARIES / "libnvidia-ml.so.1", True)
        self._made.append(Hibernator(driver, deadlines=Deadlines(**deadlines)))
        return self._made[-1]

    def used(self) -> list[int]:
        """Bytes of each GPU that are used."""
        return [int(used) for used in self._nvml("nvmlDeviceGetMemoryInfo(handle).used")]

    def gpus(self) -> list[str]:
        """The GPUs' UUIDs."""
        return self._nvml("nvmlDeviceGetUUID(handle)")

    def state(self, holder: Holder) -> str:
        """What the driver says of a program."""
        done = subprocess.run(
            [LIBRARIES.parent / "gpushare-hibernator", "--driver", LIBRARIES / "libcuda.so.1"],
            input=f"1 state {holder.pid}\n",
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()[3]

    def _nvml(self, call: str) -> list[str]:
        code = f"""if True:
            import pynvml
            pynvml.nvmlInit()
            for handle in map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())):
                print(pynvml.{call})
        """
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    async def close(self) -> None:
        for each in self._made:
            await each.close()


Make = Callable[..., Machine]


@pytest.fixture
async def machine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    with ExitStack() as stack:
        made = []

        def one(**parameters: object) -> Machine:
            environment = stack.enter_context(sim_env(**parameters))  # type: ignore[arg-type]
            for name, value in environment.items():
                if name.startswith("GPUSHARE_"):
                    monkeypatch.setenv(name, value)
            made.append(Machine(environment, stack))
            return made[-1]

        yield one
        for each in made:
            await each.close()


async def wait_for(met: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while not met():
        assert loop.time() < deadline
        await asyncio.sleep(0.01)


def said(outcome: Outcome) -> tuple[bool, str]:
    return outcome.ok, outcome.code


FINE = (True, "")


#: Twenty of them, forked before they use CUDA.
CROWD = """
    children = []
    for _ in range(20):
        down, up = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            use()
            words = np.arange(1 << 18, dtype=np.uint32) * os.getpid()
            pointer = ok(driver.cuMemAlloc(words.nbytes))
            write(pointer, words)
            os.write(up[1], b"r")
            os.read(down[0], 1)
            same = np.array_equal(read(pointer, words.size, np.uint32), words)
            os._exit(0 if same else 1)
        assert os.read(up[0], 1) == b"r"
        children.append((child, down[1]))
    say(" ".join(str(child) for child, _ in children))
    hear()
    for child, pipe in children:
        os.write(pipe, b"g")
    say(" ".join(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child, _ in children))
"""


async def test_hibernated_programs_use_no_gpu_memory_and_lose_no_data(machine: Make) -> None:
    simulated = machine(context="100MiB")
    one = simulated.hibernator()
    holders = [simulated.holder() for _ in range(2)]
    held = simulated.used()[0]
    assert held >= 2 * (100 + 16) * MIB
    for holder in holders:
        assert said(await one.hibernate(Target(holder.pid))) == FINE
    assert simulated.used()[0] <= held - 2 * (100 + 16) * MIB + 16 * MIB
    for holder in holders:
        assert said(await one.wake(Target(holder.pid))) == FINE
        holder.gpu()
    assert simulated.used()[0] == held


async def test_twenty_programs_hibernate_at_once(machine: Make) -> None:
    simulated = machine(context="16MiB")
    one = simulated.hibernator()
    crowd = simulated.talker(CROWD)
    pids = [int(pid) for pid in crowd.heard().split()]
    held = simulated.used()[0]
    for _ in range(2):
        outcomes = await asyncio.gather(*(one.hibernate(Target(pid)) for pid in pids))
        assert [said(outcome) for outcome in outcomes] == [FINE] * 20
        assert simulated.used()[0] < held / 2
        outcomes = await asyncio.gather(*(one.wake(Target(pid)) for pid in pids))
        assert [said(outcome) for outcome in outcomes] == [FINE] * 20
    crowd.tell()
    assert crowd.heard().split() == ["0"] * 20


async def test_a_stopped_program_is_unlocked_when_it_resumes(machine: Make) -> None:
    simulated = machine()
    one = simulated.hibernator(lock=0.1)
    holder = simulated.holder()
    stop(holder.pid)
    # The driver's own timeout does not end its lock.
    outcome = await one.hibernate(Target(holder.pid))
    assert said(outcome) == (False, "stuck")
    assert "lock" in outcome.text
    go_on(holder.pid)
    assert said(await one.hibernate(Target(holder.pid))) == FINE
    assert said(await one.wake(Target(holder.pid))) == FINE
    holder.gpu()


async def test_a_program_stopped_during_hibernation_wakes_when_it_resumes(
    machine: Make,
) -> None:
    simulated = machine()
    one = simulated.hibernator(state=0.5)
    holder = simulated.holder()
    await one.hibernate(Target(holder.pid))
    stop(holder.pid)
    outcome = await one.wake(Target(holder.pid))
    assert said(outcome) == (False, "stuck")
    assert "state" in outcome.text
    go_on(holder.pid)
    assert said(await one.wake(Target(holder.pid))) == FINE
    holder.gpu()


@pytest.mark.parametrize("step", ["Lock", "Checkpoint"])
async def test_a_program_wakes_once_a_hanging_driver_continues(machine: Make, step: str) -> None:
    simulated = machine()
    one = simulated.hibernator(checkpoint=0.5, lock=0.1)
    holder = simulated.holder()
    holder.fail(f"cuCheckpointProcess{step}=UNKNOWN/hang")
    outcome = await one.hibernate(Target(holder.pid))
    assert outcome.code == "stuck"
    holder.fail("")
    assert said(await one.wake(Target(holder.pid))) == FINE
    holder.gpu()


@pytest.mark.parametrize("step", ["Lock", "Checkpoint"])
async def test_a_driver_that_fails_leaves_the_program_as_it_was(machine: Make, step: str) -> None:
    simulated = machine()
    one = simulated.hibernator()
    holder = simulated.holder()
    holder.fail(f"cuCheckpointProcess{step}=UNKNOWN")
    outcome = await one.hibernate(Target(holder.pid))
    assert said(outcome) == (False, "failed")
    assert "CUDA_ERROR_UNKNOWN" in outcome.text
    holder.gpu()


async def test_a_program_stays_hibernated_until_there_is_room(
    machine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hibernator, "PAUSES", (0.01, 0.01))
    simulated = machine(memory="200MiB", context="100MiB")
    one = simulated.hibernator()
    holder = simulated.holder()
    assert said(await one.hibernate(Target(holder.pid))) == FINE
    other = simulated.holder()
    outcome = await one.wake(Target(holder.pid))
    assert said(outcome) == (False, "failed")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in outcome.text
    assert said(await one.hibernate(Target(other.pid))) == FINE
    assert said(await one.wake(Target(holder.pid))) == FINE
    holder.gpu()


async def test_a_hibernated_program_that_is_killed_is_reported_as_ended(machine: Make) -> None:
    simulated = machine()
    one = simulated.hibernator()
    holder = simulated.holder()
    await one.hibernate(Target(holder.pid))
    holder.kill()
    holder.process.wait()
    outcome = await one.wake(Target(holder.pid))
    assert said(outcome) == (False, "failed")
    assert outcome.text == f"process {holder.pid} has ended"


async def test_a_program_that_dies_of_its_checkpoint_is_gone(machine: Make) -> None:
    simulated = machine()
    one = simulated.hibernator()
    holder, other = simulated.holder(), simulated.holder()
    holder.fail("cuCheckpointProcessCheckpoint=UNKNOWN/die")
    outcome = await one.hibernate(Target(holder.pid))
    assert said(outcome) == (False, "failed")
    assert outcome.text == f"process {holder.pid} has ended"
    assert said(await one.hibernate(Target(other.pid))) == FINE
    assert said(await one.wake(Target(other.pid))) == FINE
    other.gpu()


async def test_a_killed_helper_harms_no_program(machine: Make) -> None:
    simulated = machine()
    one = simulated.hibernator()
    holder = simulated.holder()
    holder.fail("cuCheckpointProcessCheckpoint/hang")
    hibernating = asyncio.create_task(one.hibernate(Target(holder.pid)))
    # The driver is in the middle of the checkpoint, and goes on with it when the helper is gone.
    await wait_for(lambda: holder.failed() == 1)
    killed = one._helper
    assert killed is not None
    killed.process.kill()
    # The next one's question is answered once that has ended.
    await wait_for(lambda: one._helper is not killed)
    holder.fail("")
    assert said(await hibernating) == (False, "helper")
    assert simulated.state(holder) == "running"
    holder.gpu()
    assert said(await one.hibernate(Target(holder.pid))) == FINE
    assert one._helper is not None
    one._helper.process.kill()
    assert said(await one.wake(Target(holder.pid))) == FINE
    holder.gpu()


@pytest.mark.parametrize("visible", [None, "0"])
async def test_a_program_wakes_on_another_gpu(machine: Make, visible: str | None) -> None:
    simulated = machine(devices=2)
    one = simulated.hibernator()
    holder = simulated.holder(**({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))
    home = holder.gpu()
    (other,) = set(simulated.gpus()) - {home}
    before = simulated.used()
    assert said(await one.hibernate(Target(holder.pid))) == FINE
    assert said(await one.wake(Target(holder.pid), (home, other))) == FINE
    assert simulated.used() == before[::-1]
    assert said(await one.hibernate(Target(holder.pid))) == FINE
    # On a GPU that is none.
    nowhere = f"GPU-{uuid.UUID('07' * 16)}"
    assert said(await one.wake(Target(holder.pid), (other, nowhere))) == (False, "failed")
    assert said(await one.wake(Target(holder.pid))) == FINE
    assert simulated.used() == before[::-1]
    holder.gpu()


@pytest.mark.parametrize(
    ("version", "code", "moves"),
    [
        ("565.57.01", "driver", False),
        ("570.86.10", "driver", False),
        ("580.65.06", "", True),
        ("610.57.04", "driver", False),
    ],
)
async def test_the_driver_reports_its_abilities(
    machine: Make, version: str, code: str, moves: bool
) -> None:
    simulated = machine(devices=2, driver_version=version)
    found = await simulated.hibernator().probe((version, ["A", "A"]))
    assert (found.able, found.code, found.moves) == (not code, code, moves)
    if version.startswith("565"):
        assert "older than 570" in found.text
