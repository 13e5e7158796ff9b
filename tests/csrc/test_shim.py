# SPDX-License-Identifier: BSD-3-Clause
"""A program that looks for the driver finds the interposer, and through it the driver."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
Compile = Callable[..., Path]

NO_DEVICE, NOT_SUPPORTED = 100, 801
SYMBOL_NOT_FOUND = 1


@pytest.fixture(scope="module")
def small_driver(compile_c: Compile) -> Path:
    """Return a driver with few functions, one of which is unknown."""
    flags = ("-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")
    return compile_c("small_driver.c", "libcuda.so.1", *flags)


@pytest.fixture
def python(preloaded: Run, small_driver: Path) -> Callable[..., Any]:
    """Run Python under the interposer over the small driver; the value of `result` comes back."""

    def run(code: str, **env: str | Path) -> Any:
        program = f"import ctypes, json\n{code}\nprint(json.dumps(result))"
        environment = {"GPUSHARE_DRIVER": small_driver, **env}
        done = preloaded(sys.executable, "-c", program, env=environment)
        assert done.stderr == ""
        return json.loads(done.stdout)

    return run


OPEN = {
    "by its name": "ctypes.CDLL('libcuda.so.1')",
    "unversioned": "ctypes.CDLL('libcuda.so')",
    "unversioned, preferring itself": "ctypes.CDLL('libcuda.so', 8 | 2)",
    "if it is there already": "ctypes.CDLL('libcuda.so.1', 4 | 2)",
    "unversioned, if it is there already": "ctypes.CDLL('libcuda.so', 4 | 2)",
    "preferring itself": "ctypes.CDLL('libcuda.so.1', 8 | 2)",
    "for all to see": "ctypes.CDLL('libcuda.so.1', ctypes.RTLD_GLOBAL)",
    "not at all": "ctypes.CDLL(None)",
    "after the real one": "(ctypes.CDLL(__import__('os').environ['GPUSHARE_DRIVER']),"
    " ctypes.CDLL('libcuda.so.1'))[1]",
}

WHERE = """
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]

def where(function):
    info = Info()
    address = ctypes.cast(function, ctypes.c_void_p)
    assert ctypes.CDLL(None).dladdr(address, ctypes.byref(info)) != 0
    assert info.address == address.value
    return [info.file.decode().rsplit("/", 1)[-1], info.symbol.decode()]
"""


@pytest.mark.parametrize("how", OPEN)
def test_every_way_to_open_the_driver_gets_the_interposer(
    python: Callable[..., Any], how: str
) -> None:
    code = f"{WHERE}\nlibrary = {OPEN[how]}\n"
    code += "result = [where(library.cuLaunchKernel), where(library.cuDeviceGetName)]"
    assert python(code) == [
        ["libgpushare.so", "cuLaunchKernel"],
        ["libgpushare.so", "cuDeviceGetName"],
    ]


def test_a_program_linked_with_the_driver_gets_the_interposer(
    preloaded: Run, compile_c: Compile, small_driver: Path
) -> None:
    program = compile_c(
        "linked.c", "linked", str(small_driver), f"-Wl,-rpath,{small_driver.parent}"
    )
    bare = subprocess.run([program], capture_output=True, text=True, check=True)
    assert bare.stdout.strip() == str(small_driver)
    done = preloaded(program, env={"GPUSHARE_DRIVER": small_driver})
    assert done.stdout.strip().endswith("/libgpushare.so")


@pytest.mark.parametrize("mode", [2, 8 | 2], ids=["plain", "preferring itself"])
def test_a_plugin_linked_with_the_driver_gets_the_interposer(
    python: Callable[..., Any], preloaded: Run, compile_c: Compile, small_driver: Path, mode: int
) -> None:
    flags = ("-shared", "-fPIC", str(small_driver), f"-Wl,-rpath,{small_driver.parent}")
    plugin = compile_c("linked.c", "plugin.so", *flags)
    code = f"import ctypes; ctypes.CDLL({str(plugin)!r}, {mode}).report()"
    done = preloaded(sys.executable, "-c", code, env={"GPUSHARE_DRIVER": small_driver})
    assert done.stdout.strip().endswith("/libgpushare.so")


@pytest.mark.parametrize(
    "first", range(3), ids=["floating point", "on the stack", "gated, on the stack"]
)
def test_arguments_survive_the_first_call(
    preloaded: Run, compile_c: Compile, small_driver: Path, first: int
) -> None:
    link = (str(small_driver), f"-Wl,-rpath,{small_driver.parent}")
    program = compile_c("arguments.c", "arguments", *link)
    done = preloaded(program, str(first), env={"GPUSHARE_DRIVER": small_driver})
    assert done.stdout.split() == ["0"] * 6


def test_concurrent_first_calls_work(
    preloaded: Run, compile_c: Compile, small_driver: Path
) -> None:
    link = ("-pthread", str(small_driver), f"-Wl,-rpath,{small_driver.parent}")
    program = compile_c("first_calls.c", "first_calls", *link)
    for _ in range(20):
        assert preloaded(program, env={"GPUSHARE_DRIVER": small_driver}).stdout == "32\n"


def test_functions_that_an_old_driver_lacks_are_not_supported(python: Callable[..., Any]) -> None:
    code = "cuda = ctypes.CDLL('libcuda.so.1')\n"
    code += "result = [cuda.cuDeviceGetCliqueCount(0, 0), cuda.cuMemsetD8_v2(0, 0, 0)]"
    assert python(code) == [NOT_SUPPORTED, NOT_SUPPORTED]


def test_nothing_is_refused_when_sharing_is_disabled(python: Callable[..., Any]) -> None:
    """Without a scheduler the driver's answers are the application's, those of refused functions too."""
    multicast_supported = 132
    code = "cuda, value = ctypes.CDLL('libcuda.so.1'), ctypes.c_int()\n"
    code += "result = [cuda.cuMulticastCreate(ctypes.c_void_p(1), ctypes.c_void_p(2))]\n"
    code += (
        f"result += [cuda.cuDeviceGetAttribute(ctypes.byref(value), {multicast_supported}, 3)]\n"
    )
    code += "result += [value.value]"
    assert python(code) == [0, 0, 3000 + multicast_supported]


ASK = """
cuda = ctypes.CDLL("libcuda.so.1")
def ask(name, flags=0):
    address, status = ctypes.c_void_p(), ctypes.c_int(-1)
    answer = cuda.cuGetProcAddress_v2(name, ctypes.byref(address), 13050, ctypes.c_uint64(flags),
                                      ctypes.byref(status))
    return [answer, status.value, where(address) if address else None]
"""


def test_lookups_get_our_functions(python: Callable[..., Any]) -> None:
    code = f"{WHERE}{ASK}\nresult = [ask(b'cuLaunchKernel'), ask(b'cuParamSetf'), ask(b'')]"
    assert python(code) == [
        [0, 0, ["libgpushare.so", "cuLaunchKernel"]],
        [0, 0, ["libgpushare.so", "cuParamSetf"]],
        [0, SYMBOL_NOT_FOUND, None],
    ]


def test_the_lookup_function_can_be_looked_up(python: Callable[..., Any]) -> None:
    """cudart looks up cuGetProcAddress, and must not get the driver's."""
    code = f"{WHERE}{ASK}\nresult = ask(b'cuGetProcAddress')[2]"
    assert python(code) == ["libgpushare.so", "cuGetProcAddress_v2"]


def test_variants_at_one_address_are_distinguished(python: Callable[..., Any]) -> None:
    code = f"{WHERE}{ASK}\nresult = [ask(b'cuMemcpyAsync', flags)[2][1] for flags in (0, 1, 2)]"
    assert python(code) == ["cuMemcpyAsync", "cuMemcpyAsync", "cuMemcpyAsync_ptsz"]


def test_unclassified_functions_are_withheld(preloaded: Run, small_driver: Path) -> None:
    program = f"import ctypes\n{WHERE}{ASK}\nfor _ in range(3): print(ask(b'cuBrandNew'))"
    done = preloaded(sys.executable, "-c", program, env={"GPUSHARE_DRIVER": small_driver})
    assert done.stdout.splitlines() == [f"[0, {SYMBOL_NOT_FOUND}, None]"] * 3
    assert done.stderr.count("cuBrandNew") == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("value", ["libcuda.so.1", "/nowhere/libcuda.so.1"])
def test_a_useless_path_is_reported_once(preloaded: Run, value: str) -> None:
    program = "import ctypes; c = ctypes.CDLL('libcuda.so.1'); c.cuInit(0); c.cuCtxSynchronize()"
    done = preloaded(sys.executable, "-c", program, env={"GPUSHARE_DRIVER": value})
    assert done.stderr == (
        f"gpushare: GPUSHARE_DRIVER={value} is not the absolute path of a usable libcuda.so.1; "
        "searching for one\n"
    )


def test_the_path_of_the_shim_is_not_the_driver(preloaded: Run, libraries: Path) -> None:
    """A launcher that searched under the preload would name us; that must not end in a loop."""
    program = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuDriverGetVersion(None))"
    env = {"GPUSHARE_DRIVER": libraries / "libgpushare.so"}
    done = preloaded(sys.executable, "-c", program, env=env, check=False)
    assert done.returncode >= 0
    assert "is not the absolute path of a usable libcuda.so.1" in done.stderr


def test_the_driver_is_found_where_the_linker_would(preloaded: Run, small_driver: Path) -> None:
    program = "import ctypes; v = ctypes.c_int(); c = ctypes.CDLL('libcuda.so.1'); "
    program += "print(c.cuDriverGetVersion(ctypes.byref(v)), v.value)"
    env = {"LD_LIBRARY_PATH": f"/nowhere:{small_driver.parent}"}
    done = preloaded(sys.executable, "-c", program, env=env)
    assert done.stdout == "0 13050\n"
    assert done.stderr == ""


def has_driver() -> bool:
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return "libcuda.so.1" in listed


@pytest.mark.skipif(has_driver(), reason="there is a driver here")
def test_without_a_driver_there_is_no_device(preloaded: Run) -> None:
    calls = ["cuInit(0)", "cuDeviceGetCount(p)", "cuMemAlloc_v2(p, 64)"]
    calls += ["cuMemcpyDtoH_v2(p, None, None)", "cuGetProcAddress_v2(b'cuInit', p, 13000, None, p)"]
    program = (
        "import ctypes; c = ctypes.CDLL('libcuda.so.1'); p = ctypes.byref(ctypes.c_void_p())\n"
    )
    program += "".join(f"print(c.{call})\n" for call in calls)
    done = preloaded(sys.executable, "-c", program)
    assert done.stdout.split() == [str(NO_DEVICE)] * len(calls)


WHAT_IT_COSTS = """
import os, json
print(json.dumps({
    "threads": len(os.listdir("/proc/self/task")),
    "files": sorted(os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in os.listdir("/proc/self/fd")
                    if os.path.islink(f"/proc/self/fd/{n}")),
    "mapped": sorted({line.split()[-1] for line in open("/proc/self/maps") if "/" in line}),
}))
"""


def test_a_process_that_never_calls_the_driver_pays_nothing(
    preloaded: Run, libraries: Path, small_driver: Path
) -> None:
    env = {"GPUSHARE_DRIVER": small_driver, "GPUSHARE_SOCKET": "/nowhere/scheduler.sock"}
    command = [sys.executable, "-c", WHAT_IT_COSTS]
    bare = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    done = preloaded(*command, env=env)
    ours = json.loads(done.stdout)
    assert done.stderr == ""
    assert ours["threads"] == 1
    assert ours["files"] == bare["files"]
    added = {Path(path).name for path in set(ours["mapped"]) - set(bare["mapped"])}
    # Names of the C library's, empty since glibc 2.34.
    added -= {"libpthread.so.0", "libdl.so.2"}
    assert added == {"libgpushare.so", "libgpushare-alias.so", "libgpushare-nvml.so"}


LOOK_UP_ALL = """
import ctypes, json, sys
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]
dladdr = ctypes.CDLL(None).dladdr
driver = ctypes.CDLL(sys.argv[1])
answers = []
for base in json.loads(sys.argv[2]):
    for version in (2000, 3020, 4000, 7000, 9000, 10000, 11000, 12000, 13000, 13050):
        for flags in (0, 1, 2):
            address, status, info = ctypes.c_void_p(), ctypes.c_int(-1), Info()
            result = driver.cuGetProcAddress_v2(
                base.encode(), ctypes.byref(address), version, ctypes.c_uint64(flags),
                ctypes.byref(status))
            name = None
            if address:
                dladdr(address, ctypes.byref(info))
                name = info.symbol.decode() if info.address == address.value else "?"
                assert info.file.decode().endswith(sys.argv[3]), info.file
            answers.append([base, version, flags, result, status.value, name])
print(json.dumps(answers))
"""


def test_lookups_agree_with_the_driver(preloaded: Run, root: Path, simulated: Path) -> None:
    """For every function, version and flag, ours is the function that the driver would give."""
    with (root / "csrc/driver_api.csv").open(newline="", encoding="utf-8") as file:
        bases = json.dumps(sorted({row["base"] for row in csv.DictReader(file)}))
    driver = str(simulated / "libcuda.so.1")
    command = [sys.executable, "-c", LOOK_UP_ALL]
    bare = subprocess.run(
        [*command, driver, bases, "libcuda.so.1"], capture_output=True, text=True, check=True
    )
    ours = preloaded(
        *command, "libcuda.so.1", bases, "libgpushare.so", env={"GPUSHARE_DRIVER": driver}
    )
    expected, got = json.loads(bare.stdout), json.loads(ours.stdout)
    found = [answer for answer in expected if answer[5] is not None]
    assert len(found) > 1000
    assert {re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", a[5]) for a in found} <= set(json.loads(bases))
    assert got == expected
