# SPDX-License-Identifier: BSD-3-Clause
"""All Labs of one user share one scheduler, and it outlives each of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.client import FakeClient
from tests.support.lab import PATIENCE, Lab, environment


def until(probe: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := probe()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found


def stat(pid: int) -> list[str]:
    """Return what /proc says of a process after its name: state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        return ["X", "0"]


def has_ended(pid: int) -> bool:
    # An orphan may stay a zombie where no process reaps it, as in some containers.
    return stat(pid)[0] in "XZ"


def states(lab: Lab) -> dict[str, str]:
    return {group["id"]: group["state"] for group in lab.status()["groups"]}


def test_a_second_lab_takes_over_when_the_first_is_killed_in_a_burst(
    runtime: Path, tmp_path: Path, root: Path
) -> None:
    environ = environment(runtime)
    path = runtime / "s.sock"
    with (
        Lab(tmp_path / "first", environ, root, browsed=False) as first,
        Lab(tmp_path / "second", environ, root, browsed=False) as second,
    ):
        status = first.shared_status()
        old = status["scheduler"]["pid"]
        assert second.shared_status()["scheduler"]["pid"] == old
        # They started at once: whichever hosts it is killed.
        parent = int(stat(old)[1])
        assert parent in (first.process.pid, second.process.pid)
        host, other = (first, second) if parent == first.process.pid else (second, first)

        gpu = status["gpus"][0]
        most = gpu["total"] * 3 // 4
        with (
            FakeClient(path, "a", gpu["uuid"]) as holder,
            FakeClient(path, "b", gpu["uuid"]) as waiter,
        ):
            holder.attach()
            holder.grow(most)
            holder.run()
            waiter.attach()
            waiter.grow(most)
            waiter.request()
            until(lambda: states(other) == {"a": "running", "b": "waiting"})
            host.kill()
            holder.expect_closed()
            waiter.expect_closed()

        new = until(
            lambda: (found := other.status()).get("scheduler", {}).get("pid", old) != old and found
        )["scheduler"]["pid"]
        assert int(stat(new)[1]) == other.process.pid
        # It may have something left to write after the next one has taken over.
        until(lambda: has_ended(old))
        with (
            FakeClient(path, "a", gpu["uuid"]) as holder_again,
            FakeClient(path, "b", gpu["uuid"]) as waiter_again,
        ):
            # What an interposer states when it finds the next scheduler.
            holder_again.usage, holder_again.lease = holder.usage, holder.lease
            holder_again.attach(reattach=True, leased=True, busy=True)
            waiter_again.usage = waiter.usage
            waiter_again.attach(reattach=True)
            waiter_again.request()
            until(lambda: states(other) == {"a": "running", "b": "waiting"})
            other.post("gpushare/api/release", {"group": "a"})
            holder_again.release()
            holder_again.evict()
            waiter_again.take()
            until(lambda: states(other)["b"] == "running")


def test_a_scheduler_ends_with_the_last_lab(runtime: Path, tmp_path: Path, root: Path) -> None:
    with Lab(tmp_path / "only", environment(runtime), root, browsed=False) as lab:
        pid = lab.shared_status()["scheduler"]["pid"]
    until(lambda: has_ended(pid))
