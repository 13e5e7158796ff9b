# SPDX-License-Identifier: BSD-3-Clause
"""Hibernated notebooks: whatever people, Python and the system do to them, they lose nothing and never hang."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import tempfile
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.scheduler.protocol.client import ControlClient
from tests.support.lab import Lab, environment, hibernator_of, scheduler_of
from tests.support.notebook import SETUP, Notebook, has_ended, until
from tests.support.stopping import stopped

MIB = 1 << 20
#: What the driver does, in this order.
STEPS = ("Lock", "Checkpoint", "Restore", "Unlock")
#: Seconds.
LONG = 3600.0


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a private folder whose path is short enough for a socket."""
    found = Path(tempfile.mkdtemp(prefix="gpushare-"))
    yield found
    shutil.rmtree(found)
    Path("/dev/shm", f"gpushare-sim-{found.name}").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def lab(folder: Path, tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Lab]:
    """Return a server where nothing hibernates by itself for long."""
    settings = {"GpuShare": {"hibernate_after": LONG}}
    place = tmp_path_factory.mktemp("lab") / "lab"
    server = Lab(
        place, environment(folder), root, settings=settings, forked_kernels=True, browsed=False
    )
    with server as found:
        found.shared_status()
        yield found


@pytest.fixture(scope="module")
def lasting(lab: Lab) -> Iterator[Notebook]:
    """Return a notebook that outlives the tests that do not end it."""
    with Notebook(lab) as found:
        yield found


@pytest.fixture
def notebook(lasting: Notebook) -> Notebook:
    """Return a notebook that is as in the beginning."""
    assert lasting.has_its_data()
    return lasting


@contextmanager
def traced(pid: int) -> Iterator[None]:
    """Attach to a process as a debugger does, and let it run."""
    seize, detach = 0x4206, 17
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long

    def call(request: int) -> None:
        if libc.ptrace(request, pid, None, None) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    call(seize)
    try:
        yield
    finally:
        # Only a stopped process can be resumed.
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, 0x40000000)
        call(detach)
        os.kill(pid, signal.SIGCONT)


@contextmanager
def held_up(notebook: Notebook, step: str, folder: Path) -> Iterator[None]:
    """Let a step of the driver's last as long as the block."""
    reached, over = folder / f"{step}.reached", folder / f"{step}.over"
    assert notebook.run(f"hang({step!r}, {str(reached)!r}, {str(over)!r})")["status"] == "ok"
    if step in ("Lock", "Checkpoint"):
        notebook.do("hibernate")
    else:
        notebook.hibernate()
        notebook.do("wake")
    until(reached.exists, f"it is in the middle of {step}")
    try:
        yield
    finally:
        over.touch()


def events(folder: Path, notebook: Notebook, kind: str) -> list[dict[str, Any]]:
    with ControlClient(folder / "s.sock") as client:
        found = client.request("history")["events"]
    return [e for e in found if e["kind"] == kind and e["group"] == notebook.id]


# --- What a hibernated notebook is --------------------------------------------------------------------------------


def test_a_hibernated_notebook_leaves_the_gpu_and_its_next_cell_finds_its_data(
    lab: Lab, folder: Path, notebook: Notebook
) -> None:
    notebook.run("answer = 42")
    notebook.hibernate()
    group = notebook.group
    assert group is not None
    (share,) = group["gpus"]
    assert (share["resident"], share["context"], share["unevictable"]) == (0, 0, 0)
    assert share["swapped"] == share["footprint"] >= 4 * MIB
    assert group["hibernation"]["state"] == "hibernated"
    # A context alone takes 16 MiB; 4 MiB are left of a process that is checkpointed.
    until(lambda: lab.status()["gpus"][0]["used"] <= 4 * MIB, "the GPU's memory is free")
    assert notebook.value("(answer, data.read() == known)") == (42, True)
    assert notebook.state in ("idle", "idle_lease", "running")
    assert events(folder, notebook, "hibernate")
    assert events(folder, notebook, "wake")


def test_a_user_may_wake_a_notebook_before_its_next_cell(notebook: Notebook) -> None:
    notebook.hibernate()
    notebook.do("wake")
    until(lambda: notebook.state == "idle", "it is awake")
    assert notebook.has_its_data()


def test_an_idle_notebook_hibernates_unless_it_is_kept(lab: Lab, notebook: Notebook) -> None:
    with Notebook(lab) as kept:
        kept.do("adjust", keep=True)
        # The kept notebook has been idle for longer.
        assert kept.has_its_data()
        assert notebook.has_its_data()
        lab.post("gpushare/api/settings", {"hibernate_after": 0.1})
        try:
            until(lambda: notebook.state == "hibernated", "the other is hibernated")
            assert kept.state in ("idle_lease", "idle")
            assert lab.status()["settings"]["hibernate_after"] == 0.1
        finally:
            lab.post("gpushare/api/settings", {"hibernate_after": LONG})
        assert kept.has_its_data()
    assert notebook.has_its_data()


def test_hibernate_is_refused_with_a_reason_when_off_or_for_a_kept_notebook(
    lab: Lab, notebook: Notebook
) -> None:
    def refused() -> str:
        with pytest.raises(urllib.error.HTTPError) as refusal:
            notebook.do("hibernate")
        assert refusal.value.code == 400
        return str(json.loads(refusal.value.read())["message"])

    lab.post("gpushare/api/settings", {"hibernate_after": 0})
    try:
        assert lab.status()["settings"]["hibernate_after"] is None
        assert "switched off" in refused()
    finally:
        lab.post("gpushare/api/settings", {"hibernate_after": LONG})
    notebook.do("adjust", keep=True)
    try:
        assert "is to stay on the GPU (keep)" in refused()
    finally:
        notebook.do("adjust", keep=False)
    assert notebook.state != "hibernated"


# --- What people do -----------------------------------------------------------------------------------------------


def test_a_cell_that_waits_to_be_woken_can_be_interrupted(
    lab: Lab, notebook: Notebook, tmp_path: Path
) -> None:
    notebook.hibernate()
    with stopped(hibernator_of(lab)):
        cell = notebook.begin_now("data.read()", tmp_path)
        until(lambda: notebook.state == "waking", "it is being woken")
        notebook.interrupt()
        reply = notebook.end(cell)
        assert (reply["status"], reply.get("ename")) == ("error", "KeyboardInterrupt")
        # It lives, and so does what needs no GPU.
        assert notebook.value("len(known)") == 4 * MIB
    assert notebook.has_its_data()


def test_a_free_that_waits_to_be_woken_can_be_interrupted_and_repeated(
    lab: Lab, notebook: Notebook, tmp_path: Path
) -> None:
    notebook.run("spare = Array(bytes(MIB := 1 << 20))")
    notebook.hibernate()
    with stopped(hibernator_of(lab)):
        cell = notebook.begin_now("spare.free()", tmp_path)
        until(lambda: notebook.state == "waking", "it is being woken")
        notebook.interrupt()
        assert notebook.end(cell).get("ename") == "KeyboardInterrupt"
    assert notebook.run("spare.free()")["status"] == "ok"
    assert notebook.has_its_data()


def test_an_interrupt_reaches_a_waiting_call_that_holds_the_gil(
    lab: Lab, notebook: Notebook, tmp_path: Path
) -> None:
    notebook.hibernate()
    with stopped(hibernator_of(lab)):
        call = "check(ctypes.PyDLL('libcuda.so.1').cuCtxSynchronize())"
        cell = notebook.begin_now(call, tmp_path)
        until(lambda: notebook.state == "waking", "it is being woken")
        notebook.interrupt()
        assert notebook.end(cell).get("ename") == "KeyboardInterrupt"
    assert notebook.has_its_data()


def test_a_hibernated_notebook_restarts(lab: Lab) -> None:
    with Notebook(lab) as notebook:
        pid = notebook.pid
        notebook.hibernate()
        notebook.restart()
        until(lambda: has_ended(pid), "the old process has ended")
        assert notebook.run(SETUP)["status"] == "ok"
        assert notebook.has_its_data()
        # And it may hibernate as before.
        notebook.hibernate()
        assert notebook.has_its_data()


def test_a_hibernated_notebook_runs_its_exit_handlers_at_shutdown(lab: Lab, tmp_path: Path) -> None:
    with Notebook(lab) as notebook:
        ending = """
@atexit.register
def end(check=check, data=data, path=PATH):
    try:
        data.free()
        text = "freed"
    except CudaError as error:
        text = str(error)
    with open(path, "w") as file:
        file.write(text)
"""
        notebook.run(f"PATH = {str(tmp_path / 'end')!r}\n" + ending)
        pid = notebook.pid
        notebook.hibernate()
        notebook.shut_down()
        until(lambda: has_ended(pid), "the process has ended")
        until(lambda: notebook.group is None, "its group is gone")
        # Or CUDA_ERROR_DEINITIALIZED, if it could not be woken in time.
        assert (tmp_path / "end").read_text() in ("freed", "CUDA error 4")


def test_a_notebook_shuts_down_while_it_is_woken_for_a_thread(lab: Lab, tmp_path: Path) -> None:
    with Notebook(lab) as notebook:
        pid = notebook.pid
        go = tmp_path / "go"
        notebook.run(f"whenever({str(go)!r}, data.read)")
        with held_up(notebook, "Restore", tmp_path):
            go.touch()
            notebook.shut_down()
        until(lambda: has_ended(pid), "the process has ended")
        until(lambda: notebook.group is None, "its group is gone")


@pytest.mark.parametrize("step", ["", "Checkpoint"])
def test_a_notebook_that_is_killed_leaves_nothing_behind(
    lab: Lab, tmp_path: Path, step: str
) -> None:
    with Notebook(lab) as notebook:
        pid = notebook.pid
        if step:
            with held_up(notebook, step, tmp_path):
                os.kill(pid, signal.SIGKILL)
        else:
            notebook.hibernate()
            os.kill(pid, signal.SIGKILL)
        until(lambda: notebook.group is None, "its group is gone")
        # The server starts it again, and it is as new.
        until(lambda: has_ended(pid), "the old process has ended")
        notebook.connect()
        assert notebook.run(SETUP)["status"] == "ok"
        assert notebook.pid != pid
        assert notebook.has_its_data()


def test_a_cell_that_waits_for_input_is_not_hibernated(notebook: Notebook) -> None:
    cell = notebook.begin("said = input()\nsame = data.read() == known")
    notebook.client.get_stdin_msg(timeout=60)
    notebook.do("hibernate")
    assert notebook.state not in ("hibernated", "waking")
    notebook.client.input("yes")
    assert notebook.end(cell)["status"] == "ok"
    # Now it is idle.
    until(lambda: notebook.state == "hibernated", "it is hibernated")
    assert notebook.value("(said, same)") == ("yes", True)


# --- What Python does ---------------------------------------------------------------------------------------------


def test_objects_that_die_while_it_is_hibernated_free_their_memory(
    notebook: Notebook, tmp_path: Path
) -> None:
    """By a finalizer, by ``__del__``, and by a garbage collection that finds a cycle."""
    notebook.run("""
class Owner:
    def __init__(self):
        self.array, self.cycle = Array(bytes(1 << 20)), None
    def __del__(self):
        self.array.free()
        freed.append("__del__")
freed = []
class Other: pass
other, finalized = Other(), Array(bytes(1 << 20))
weakref.finalize(other, lambda: (finalized.free(), freed.append("finalizer")))
lone, ring = Owner(), Owner()
ring.cycle = ring
""")
    for number, work in enumerate(
        (
            "globals().pop('other')",
            "globals().pop('lone')",
            "globals().pop('ring') and gc.collect()",
        )
    ):
        path = tmp_path / str(number)
        notebook.run(f"whenever({str(path)!r}, lambda: {work} and None)")
        notebook.hibernate()
        path.touch()
        done = path.with_name(f"{number}.done")
        until(done.exists, f"{work} has ended")
        assert done.read_text() == "None"
    assert notebook.value("freed") == ["finalizer", "__del__", "__del__"]
    assert notebook.has_its_data()


def test_a_background_thread_that_calls_cuda_continues(notebook: Notebook) -> None:
    notebook.run("""
calls, over = [0], threading.Event()
def call():
    check(cuda.cuCtxSetCurrent(context))
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    while not over.wait(0.05):
        check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        calls[0] += 1
thread = threading.Thread(target=call)
thread.start()
""")
    for _ in range(3):
        before = notebook.value("calls[0]")
        notebook.do("hibernate")
        until(lambda: notebook.value("calls[0]") > before + 3, "the thread goes on")  # noqa: B023
    notebook.run("over.set(); thread.join()")
    assert not notebook.value("thread.is_alive()")
    assert notebook.has_its_data()


def test_many_threads_wait_for_one_wake(notebook: Notebook) -> None:
    notebook.run("""
def together(count):
    results, go = [], threading.Barrier(count)
    def read():
        go.wait()
        try:
            results.append(data.read() == known)
        except Exception as error:
            results.append(repr(error))
    threads = [threading.Thread(target=read) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
""")
    notebook.hibernate()
    assert notebook.value("together(8)") == [True] * 8


def test_a_callback_of_a_widget_has_its_data(notebook: Notebook, tmp_path: Path) -> None:
    done = tmp_path / "done"
    notebook.run(f"""
def opened(comm, message):
    @comm.on_msg
    def called(message):
        same = data.read() == known
        with open({str(done)!r}, "w") as file:
            file.write(str(same))
get_ipython().kernel.comm_manager.register_target("test", opened)
""")
    session, channel = notebook.client.session, notebook.client.shell_channel
    channel.send(session.msg("comm_open", {"comm_id": "c", "target_name": "test", "data": {}}))
    notebook.hibernate()
    channel.send(session.msg("comm_msg", {"comm_id": "c", "data": {}}))
    until(lambda: done.exists() and done.read_text(), "the callback has ended")
    assert done.read_text() == "True"
    assert notebook.has_its_data()


# --- What the system does -----------------------------------------------------------------------------------------


def test_a_notebook_stays_hibernated_under_the_next_scheduler(lab: Lab, notebook: Notebook) -> None:
    notebook.hibernate()
    before = scheduler_of(lab)
    os.kill(before, signal.SIGKILL)
    until(lambda: scheduler_of(lab) != before, "there is another scheduler")
    until(lambda: notebook.state == "hibernated", "it knows the notebook")
    assert notebook.has_its_data()


def test_a_hibernator_that_dies_is_replaced(lab: Lab, notebook: Notebook) -> None:
    notebook.hibernate()
    os.kill(hibernator_of(lab), signal.SIGKILL)
    assert notebook.has_its_data()


@pytest.mark.parametrize(
    ("step", "whose"),
    [
        ("Lock", "hibernator"),
        ("Lock", "scheduler"),
        ("Checkpoint", "scheduler"),
        ("Restore", "hibernator"),
    ],
)
def test_a_scheduler_or_hibernator_may_die_in_the_middle_of_a_step(
    lab: Lab, notebook: Notebook, tmp_path: Path, step: str, whose: str
) -> None:
    scheduler = scheduler_of(lab)
    with held_up(notebook, step, tmp_path):
        if whose == "hibernator":
            os.kill(hibernator_of(lab), signal.SIGKILL)
        else:
            os.kill(scheduler, signal.SIGKILL)
            until(lambda: scheduler_of(lab) != scheduler, "there is another scheduler")
            until(lambda: notebook.group, "it knows the notebook")
        cell = notebook.begin_now("same = data.read() == known", tmp_path)
    assert notebook.end(cell)["status"] == "ok"
    assert notebook.value("same")
    notebook.hibernate()
    assert notebook.has_its_data()


def test_a_stopped_notebook_keeps_its_data_through_hibernate_and_wake(notebook: Notebook) -> None:
    pid = notebook.pid
    with stopped(pid):
        notebook.do("hibernate")
        until(lambda: notebook.hibernation, "it is told to be hibernated")
    assert notebook.has_its_data()
    notebook.hibernate()
    with stopped(pid):
        notebook.do("wake")
        until(lambda: notebook.state == "waking", "it is being woken")
    assert notebook.has_its_data()


def test_a_debugged_notebook_is_left_alone_and_a_hibernated_one_can_be_woken(
    notebook: Notebook,
) -> None:
    pid = notebook.pid
    with traced(pid):
        notebook.do("hibernate")
        until(lambda: notebook.hibernation.get("code"), "it is said why it is not hibernated")
        # The order stands.
        assert notebook.hibernation["state"] == "ordered"
        assert notebook.hibernation["code"] == "debugger"
        assert "debugger" in notebook.hibernation["text"]
        assert notebook.has_its_data()
    notebook.hibernate()
    with traced(pid):
        cell = notebook.begin("same = data.read() == known")
        assert notebook.end(cell)["status"] == "ok"
        assert notebook.value("same")


# --- What the driver does -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_a_notebook_can_be_interrupted_stopped_and_debugged_during_a_step(
    notebook: Notebook, tmp_path: Path, step: str
) -> None:
    pid = notebook.pid
    with held_up(notebook, step, tmp_path):
        cell = notebook.begin_now("data.read()", tmp_path)
        notebook.interrupt()
        assert notebook.end(cell).get("ename") == "KeyboardInterrupt"
        with stopped(pid):
            pass
        with traced(pid):
            pass
        # Other signals than an interrupt change nothing.
        code = """
ticks = []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
try:
    same = data.read() == known
finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
"""
        cell = notebook.begin_now(code, tmp_path)
    assert notebook.end(cell)["status"] == "ok"
    assert notebook.value("same and len(ticks) > 0")


@pytest.mark.parametrize("step", ["Lock", "Checkpoint"])
def test_a_notebook_whose_checkpoint_fails_continues_with_a_reason(
    folder: Path, notebook: Notebook, step: str
) -> None:
    notebook.run(f"fail('cuCheckpointProcess{step}:1=UNKNOWN')")
    notebook.do("hibernate")
    until(lambda: notebook.hibernation.get("code"), "it is said why it is not hibernated")
    found = notebook.hibernation
    assert (found["state"], found["code"]) == ("refused", "failed")
    assert "CUDA_ERROR_UNKNOWN" in found["text"]
    assert events(folder, notebook, "hibernate_failed")[-1]["text"] == found["text"]
    assert notebook.has_its_data()
    notebook.run("fail()")
    notebook.hibernate()
    assert notebook.has_its_data()


@pytest.mark.parametrize("step", ["Restore", "Unlock"])
def test_a_notebook_whose_restore_fails_once_is_woken(notebook: Notebook, step: str) -> None:
    notebook.run(f"fail('cuCheckpointProcess{step}:1=UNKNOWN')")
    notebook.hibernate()
    assert notebook.has_its_data()
    notebook.run("fail()")


def test_a_notebook_that_cannot_be_woken_reports_what_is_safe_and_wakes_later(
    lab: Lab, folder: Path, notebook: Notebook
) -> None:
    notebook.run("fail('cuCheckpointProcessRestore=OUT_OF_MEMORY')")
    notebook.hibernate()
    reply = notebook.run("data.read()")
    assert (reply["status"], reply.get("ename")) == ("error", "CudaError")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in events(folder, notebook, "wake_failed")[-1]["text"]
    assert "Its data is safe in host memory" in lab.log
    notebook.run("fail()")
    assert notebook.has_its_data()


def test_addresses_that_the_driver_loses_are_reserved_again(notebook: Notebook) -> None:
    notebook.run("fail('cuCheckpointProcessRestore:1/forget')")
    notebook.hibernate()
    assert notebook.has_its_data()
    notebook.run("fail()")
