# SPDX-License-Identifier: BSD-3-Clause
"""What every program here does between two steps. Standard library only: it runs inside of the programs.

A program is a number of steps. After each it prints one JSON line with the SHA-256 of all that matters (parameters,
outputs, the state of random generators), and then, by ``GPUSHARE_CONFORMANCE_STEP``:

- ``evict``: has the memory of its own lease group evicted, and waits until none is on the GPU;
- ``hibernate``: has its own lease group hibernated, and waits until it was; the next step wakes it. If it is left alone
  for good, it says so (``left_alone``), and is not asked again;
- ``elsewhere``: the same, while the GPU that it is on is drained, so that it wakes on another one.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import hashlib
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

#: Seconds for an eviction, and for a reply.
PATIENCE = 60.0
_REPLY = 1 << 20
#: Why a group is not hibernated now, but may be in a moment.
_PASSING = ("busy", "capture", "stuck")


def arguments() -> argparse.Namespace:
    """Parse ``--device`` and ``--steps``, and refuse to start where managed memory could be used."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=12)
    parsed = parser.parse_args()
    # The runner asks a program that takes too long for its position.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    under_us = "GPUSHARE_GROUP" in os.environ and "GPUSHARE_SIM" not in os.environ
    settings = os.environ.get("GPUSHARE_BACKEND"), os.environ.get("GPUSHARE_FORBID_MANAGED")
    if under_us and settings != ("swap", "1"):
        print(
            "Set GPUSHARE_BACKEND=swap and GPUSHARE_FORBID_MANAGED=1: "
            "managed memory must not be used on a real GPU",
            file=sys.stderr,
        )
        sys.exit(2)
    return parsed


def say(**fields: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(fields), flush=True)


def absent(why: str) -> NoReturn:
    """End: what the program needs is not on this machine."""
    say(absent=why)
    sys.exit(0)


def refused(why: object) -> NoReturn:
    """End: what the program does was refused, with this message."""
    say(refused=" ".join(str(why).split())[:300])
    sys.exit(0)


def load(name: str) -> Any:
    """Import a library, or end where it is not here."""
    try:
        return importlib.import_module(name)
    except (ImportError, AttributeError) as error:
        # A library that was built for another version of what it needs fails in either way.
        absent(f"{name} cannot be imported: {error}")


def digests(parts: Iterable[Any]) -> dict[str, Any]:
    """Return the SHA-256 of buffers, and the beginning of that of each, which tells where a difference is."""
    each = [hashlib.sha256(part).hexdigest() for part in parts]
    total = hashlib.sha256("".join(each).encode()).hexdigest()
    return {"digest": total, "parts": [one[:8] for one in each]}


def run(steps: int, step: Callable[[int], object], state: Callable[[], Iterable[Any]]) -> None:
    """Carry out the steps, and say after each what ``state`` holds; at the end, once more."""
    for index in range(steps):
        step(index)
        say(step=index, **digests(state()))
        boundary()
    say(end=steps, **digests(state()))


def boundary() -> None:
    """Do what is asked for between steps."""
    match os.environ.get("GPUSHARE_CONFORMANCE_STEP"):
        case "evict":
            evict()
        case ("hibernate" | "elsewhere") as way:
            if why := hibernate() if way == "hibernate" else leave():
                say(left_alone=why)
                os.environ["GPUSHARE_CONFORMANCE_STEP"] = ""


def evict() -> None:
    """Have all memory of this process's lease group moved out, and wait until it is.

    Raises
    ------
    RuntimeError
        If it is not within a minute, or the scheduler refuses.
    """
    before = _group()
    if before["resident"] == 0:
        return
    _control("evict", group=before["id"])
    deadline = time.monotonic() + PATIENCE
    # Memory may come back at once where another thread submits: then it has been out all the same.
    while (now := _group())["resident"] and now["evicted"] - before["evicted"] < before["resident"]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not moved out after {PATIENCE:.0f} s: {before} before, {now} now")
        time.sleep(0.001)


def hibernate() -> str:
    """Have this process's lease group hibernated, and wait until it was; return why it is left alone, if it is.

    Raises
    ------
    RuntimeError
        If it was not within a minute.
    """
    own = os.environ["GPUSHARE_GROUP"]
    seen = _control("history", since=0)["sequence"]
    deadline = time.monotonic() + PATIENCE
    while (found := _control("status")["status"]["hibernation"])["able"] is None:
        if time.monotonic() > deadline:
            raise RuntimeError("the scheduler does not find out whether anything can hibernate")
        time.sleep(0.01)
    if not found["able"]:
        return str(found["code"])
    ordered = False
    while time.monotonic() < deadline:
        if not ordered:
            try:
                _control("hibernate", group=own)
            except RuntimeError as error:
                return str(error)
            ordered = True
        time.sleep(0.005)
        news = _control("history", since=seen)
        seen = news["sequence"]
        for event in news["events"]:
            if event["group"] != own:
                continue
            if event["kind"] == "hibernate":
                return ""
            if event["kind"] == "hibernate_failed":
                if event["code"] not in _PASSING:
                    return str(event["code"])
                ordered = False
    raise RuntimeError(f"not hibernated after {PATIENCE:.0f} s: {_control('status')}")


def leave() -> str:
    """Have the GPU drained that it is on, and no other, and hibernate; return why it is left alone, if it is."""
    own, status = os.environ["GPUSHARE_GROUP"], _control("status")["status"]
    gpus = next(group["gpus"] for group in status["groups"] if group["id"] == own)
    home = max(gpus, key=lambda gpu: gpu["footprint"])["uuid"]
    # Before it is hibernated: a thread of the library's may wake it at once.
    for gpu in status["gpus"]:
        _control("drain", gpu=gpu["uuid"], on=gpu["uuid"] == home)
    why = hibernate()
    if why:
        _control("drain", gpu=home, on=False)
    return why


def _group() -> dict[str, Any]:
    own = os.environ["GPUSHARE_GROUP"]
    for group in _control("status")["status"]["groups"]:
        if group["id"] == own:
            resident = sum(gpu["resident"] for gpu in group["gpus"])
            return {"id": own, "resident": resident, "evicted": group["totals"]["evicted"]}
    return {"id": own, "resident": 0, "evicted": 0}


def _control(op: str, **parameters: Any) -> dict[str, Any]:
    """Send a control request through the interposer that is loaded into this process."""
    control = ctypes.CDLL(None).gpushare_control
    control.restype = ctypes.c_int64
    control.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    version = int(os.environ["GPUSHARE_CONFORMANCE_PROTOCOL"])
    request = json.dumps({"op": op, "protocol": version, **parameters}).encode()
    reply = ctypes.create_string_buffer(_REPLY)
    length = control(request, reply, _REPLY)
    if length < 0:
        raise RuntimeError(f"the scheduler does not answer: {os.strerror(-length)}")
    answer: dict[str, Any] = json.loads(reply.value)
    if not answer["ok"]:
        raise RuntimeError(answer["error"])
    return answer
