# SPDX-License-Identifier: BSD-3-Clause
"""Which GPU a program's device 0 is, and what its children's numbers mean."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.support.machine import PATIENCE, Machine

MakeMachine = Callable[..., Machine]

#: Prints the UUIDs of its devices, in CUDA's order, and keeps its environment in view.
LOOK = """
import ctypes, json, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
def devices():
    count, uuid = ctypes.c_int(), (ctypes.c_uint8 * 16)()
    result = cuda.cuInit(0)
    if result:
        return result
    cuda.cuDeviceGetCount(ctypes.byref(count))
    found = []
    for ordinal in range(count.value):
        cuda.cuDeviceGetUuid_v2(uuid, ordinal)
        found.append(bytes(uuid).hex())
    return found
"""


def run(machine: Machine, code: str, group: str, **environ: str) -> Any:
    """Run a program under the interposer to its end; return what it printed as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK + code],
        env=machine.environment(group, group, **environ),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def gpus(machine: Machine) -> list[str]:
    """Return the bytes of the GPUs' UUIDs, in NVML's order."""
    found = machine.control("status")["status"]["gpus"]
    return [gpu["uuid"][4:].replace("-", "") for gpu in sorted(found, key=lambda g: g["index"])]


def order_of(machine: Machine, program: Any) -> list[str]:
    """Return the devices of a worker, in CUDA's order."""
    return list(program.call("devices")["uuids"])


def test_two_programs_begin_on_two_gpus(make_machine: MakeMachine) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="2")
    first, second = gpus(machine)
    a, b = machine.program("a"), machine.program("b")
    assert order_of(machine, a) == [first, second]
    assert order_of(machine, b) == [second, first]
    # Both still see both; memory is where they were placed.
    b.filled(4096, 1)
    assert [g["uuid"][4:].replace("-", "") for g in machine.group("b")["gpus"]] == [second]


def test_all_processes_of_a_group_have_the_same_order(make_machine: MakeMachine) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="3")
    first, second, third = gpus(machine)
    machine.program("other").filled(4096, 1)
    parent = machine.program("parent", group="g")
    assert order_of(machine, parent) == [second, third, first]
    # Meanwhile the second GPU has become the fullest; its processes stay where the first one is.
    parent.filled(4096, 1)
    assert run(machine, "print(json.dumps(devices()))", "g") == [second, third, first]


def test_a_scheduler_of_another_version_is_asked_once_for_a_placement(
    make_machine: MakeMachine,
) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="2")
    machine.kill_scheduler()
    machine.socket.unlink()
    asked: list[int] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(machine.socket))
        server.listen()

        def refuse() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        for frame in protocol.FrameReader().feed(connection.recv(65536)):
                            asked.append(frame.type)
                            connection.sendall(protocol.refused(errno.EPROTO, "another version"))

        serving = threading.Thread(target=refuse, daemon=True)
        serving.start()
        a = machine.program("a")
        server.shutdown(socket.SHUT_RDWR)
        serving.join()
    assert asked[:2] == [protocol.PLACE, protocol.HELLO]
    assert protocol.PLACE not in asked[2:]
    assert any("another version" in line for line in a.errors)


@pytest.mark.parametrize("numbers", ["1", "0,2", "2,1,0"])
def test_device_numbers_of_a_child_follow_the_order_of_its_group(
    make_machine: MakeMachine, numbers: str
) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="3")
    machine.program("other").filled(4096, 1)
    order = order_of(machine, machine.program("parent", group="g"))
    assert order != gpus(machine)
    code = f"os.environ['CUDA_VISIBLE_DEVICES'] = {numbers!r}\nprint(json.dumps(devices()))"
    assert run(machine, code, "g") == [order[int(n)] for n in numbers.split(",")]


@pytest.mark.parametrize("how", ["fork", "spawn", "copy before", "copy after"])
def test_workers_neither_collide_nor_leave_the_set(make_machine: MakeMachine, how: str) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="3")
    machine.program("other").filled(4096, 1)
    code = f"""
import subprocess
how = {how!r}
copy = dict(os.environ)
if how != "fork":
    own = devices()
seen = []
for rank in range(2):
    if how == "fork":
        out, back = os.pipe()
        if os.fork() == 0:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
            os.write(back, json.dumps(devices()).encode())
            os._exit(0)
        seen.append(json.loads(os.read(out, 4096)))
        os.wait()
        continue
    child = "print(json.dumps(devices()))"
    environ = copy if how == "copy before" else dict(os.environ)
    environ["CUDA_VISIBLE_DEVICES"] = str(rank)
    if how == "spawn":
        os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
        environ = None
    source = open("/proc/self/cmdline").read().split("\\0")[2].partition("import subprocess")[0]
    done = subprocess.run([sys.executable, "-c", source + child], env=environ, stdout=subprocess.PIPE)
    seen.append(json.loads(done.stdout))
if how == "fork":
    del os.environ["CUDA_VISIBLE_DEVICES"]
print(json.dumps([seen, devices() if how == "fork" else own]))
"""
    seen, own = run(machine, code, "g", CUDA_VISIBLE_DEVICES="0,1,2")
    if how == "fork":
        # The first that used CUDA chose by number: so the machine's numbers are the group's from then on.
        assert seen == [[gpu] for gpu in gpus(machine)[:2]]
    else:
        assert seen == [[gpu] for gpu in own[:2]]


def test_the_environment_is_as_the_program_left_it(make_machine: MakeMachine) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="2")
    code = """
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
before = libc.getenv(b"CUDA_VISIBLE_DEVICES")
found = devices()
after = libc.getenv(b"CUDA_VISIBLE_DEVICES")
print(json.dumps([len(found), before == after, before and before.decode()]))
"""
    assert run(machine, code, "a") == [2, True, None]
    assert run(machine, code, "b", CUDA_VISIBLE_DEVICES="1,0") == [2, True, "1,0"]


def test_a_kernel_is_placed_within_its_own_set_of_gpus(make_machine: MakeMachine) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="3")
    _, second, third = gpus(machine)
    a = machine.program("a", CUDA_VISIBLE_DEVICES="1,2")
    a.filled(4096, 1)
    b = machine.program("b", group="b", CUDA_VISIBLE_DEVICES="1,2")
    assert order_of(machine, b) == [third, second]
    # By the numbers that it was given, and by place where no number could be meant.
    for numbers, expected in (("2", [second]), ("1,2", [third, second]), ("2,0", [second])):
        code = f"os.environ['CUDA_VISIBLE_DEVICES'] = {numbers!r}\nprint(json.dumps(devices()))"
        assert run(machine, code, "b", CUDA_VISIBLE_DEVICES="1,2") == expected
    code = "os.environ['CUDA_VISIBLE_DEVICES'] = '0'\nprint(json.dumps(devices()))"
    assert run(machine, code, "b", CUDA_VISIBLE_DEVICES="1,2") == 100  # no device


def test_a_choice_in_the_program_is_honoured(make_machine: MakeMachine) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="3")
    first, _, third = gpus(machine)
    machine.program("other").filled(4096, 1)
    code = "os.environ['CUDA_VISIBLE_DEVICES'] = {!r}\nprint(json.dumps(devices()))"
    assert run(machine, code.format("0"), "a") == [first]
    assert run(machine, code.format("2,0"), "b") == [third, first]
    uuid = next(
        gpu["uuid"]
        for gpu in machine.control("status")["status"]["gpus"]
        if gpu["uuid"].replace("-", "").endswith(first)
    )
    assert run(machine, code.format(uuid), "c") == [first]
    assert run(machine, code.format(""), "d") == 100
    assert run(machine, "print(json.dumps(devices()))", "e", GPUSHARE_PLACE="0") == gpus(machine)


def test_a_new_scheduler_learns_the_order(make_machine: MakeMachine) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="2")
    first, second = gpus(machine)
    other = machine.program("other")
    other.filled(4096, 1)
    parent = machine.program("parent", group="g")
    assert order_of(machine, parent) == [second, first]
    machine.kill_scheduler()
    other.close()
    machine.start_scheduler()
    machine.until(lambda: bool(machine.control("status")["status"]["groups"]))
    assert run(machine, "print(json.dumps(devices()))", "g") == [second, first]


def test_a_group_that_returns_is_placed_again(make_machine: MakeMachine) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="2")
    first, second = gpus(machine)
    a, b = machine.program("a"), machine.program("b", group="b")
    assert order_of(machine, b)[0] == second
    a.close()
    b.close()
    machine.until(lambda: not machine.control("status")["status"]["groups"])
    assert order_of(machine, machine.program("b", group="b"))[0] == first


def test_different_gpus_and_slices_are_ordered(make_machine: MakeMachine) -> None:
    machine = make_machine(
        GPUSHARE_SIM_DEVICES="2",
        GPUSHARE_SIM_MEMORY="64MiB,256MiB",
        GPUSHARE_SIM_MIG="0,2",
        GPUSHARE_SIM_MODEL="Small,Large",
        GPUSHARE_SIM_COMPUTE_CAPABILITY="8.0,9.0",
    )
    found = machine.control("status")["status"]["gpus"]
    assert [gpu["uuid"][:4] for gpu in found] == ["GPU-", "MIG-", "MIG-"]
    assert [gpu["name"] for gpu in found] == ["Small", "Large MIG 1:0", "Large MIG 1:1"]
    whole, one, two = (gpu["uuid"][4:].replace("-", "") for gpu in found)
    a, b, c = (machine.program(name) for name in "abc")
    # The most room first, and then unused GPUs. CUDA has one slice in a process, and nothing else.
    assert order_of(machine, a) == [one]
    a.filled(4096, 1)
    assert order_of(machine, b) == [two]
    b.filled(4096, 1)
    assert order_of(machine, c) == [whole]
    c.filled(4096, 1)
    names = {g["name"]: g["gpus"][0]["uuid"] for g in machine.control("status")["status"]["groups"]}
    assert names == {"a": found[1]["uuid"], "b": found[2]["uuid"], "c": found[0]["uuid"]}


def test_a_process_started_after_a_wake_on_another_gpu_begins_there_too(
    make_machine: MakeMachine,
) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="3")
    first, second, third = gpus(machine)
    parent = machine.program("parent", group="g")
    pointer = parent.filled(4096, 1)
    assert order_of(machine, parent) == [first, second, third]
    machine.hibernate("parent")
    machine.control("drain", gpu="0")
    assert parent.holds(pointer, 4096, 1)
    machine.control("drain", gpu="0", on=False)
    own = order_of(machine, parent)
    assert own in ([second, first, third], [third, second, first])
    assert run(machine, "print(json.dumps(devices()))", "g") == own


def test_a_process_with_one_gpu_wakes_there_or_not_at_all(make_machine: MakeMachine) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="2")
    second = gpus(machine)[1]
    program = machine.program("a", GPUSHARE_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="1")
    pointer = program.filled(4096, 1)
    machine.hibernate("a")
    machine.control("drain", gpu="1")
    checking = program.start("check", pointer=pointer, bytes=4096, value=1)
    machine.until(lambda: (machine.group("a")["reason"] or {}).get("code") == "gpu_draining")
    assert program.waits(checking, 0.3)
    machine.control("drain", gpu="1", on=False)
    assert program.result(checking)["equal"]
    assert order_of(machine, program) == [second]


def test_a_process_that_waits_for_a_drained_gpu_leaves_it_when_interrupted(
    make_machine: MakeMachine,
) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="2")
    first, second = gpus(machine)
    program = machine.program("a")
    pointer = program.filled(4096, 1)
    assert order_of(machine, program) == [first, second]
    # With a cell open, it does not hibernate before it waits: it would be woken on the other GPU at once.
    program.call("cell", phase="begin")
    machine.until(lambda: machine.group("a")["cell"] is not None)
    # Nor does it run under the lease that it had.
    machine.control("release", group="a")
    machine.until(lambda: machine.group("a")["state"] == "idle")
    machine.control("drain", gpu="0")
    waiting = program.start("check", pointer=pointer, bytes=4096, value=1)
    machine.until(lambda: (machine.group("a")["reason"] or {}).get("code") == "gpu_draining")
    machine.control("cancel", group="group-a")
    assert program.result(waiting)["result"] != 0
    program.call("cell", phase="end")
    machine.until(lambda: machine.group("a")["state"] == "hibernated")
    assert program.holds(pointer, 4096, 1)
    assert order_of(machine, program) == [second, first]
