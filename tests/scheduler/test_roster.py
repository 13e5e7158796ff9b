# SPDX-License-Identifier: BSD-3-Clause
"""Clients of the previous scheduler: their list, and what is done until they have attached again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.memory.roster import Roster, corrected
from jupyter_gpushare.scheduler.protocol.processes import start_time
from tests.scheduler.core_machine import GIB, GPU, Machine, of
from tests.support.client import FakeClient
from tests.support.scheduler import Start, state, until

US = ev.Usage(GPU, 5 * GIB, 4 * GIB, GIB, GIB)


def me() -> ev.Awaited:
    started = start_time(os.getpid())
    assert started is not None
    return ev.Awaited(os.getpid(), started, "kernel", (US,))


def test_the_next_scheduler_finds_running_clients(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = start_time(child.pid)
    assert started is not None
    elsewhere = ev.Awaited(0, "", "in another container", ())
    again = ev.Awaited(os.getpid(), "1", "another process of that number", ())
    Roster(tmp_path / "list").write(
        [me(), ev.Awaited(child.pid, started, "child", ()), elsewhere, again]
    )
    child.communicate()
    assert Roster(tmp_path / "list").load() == [me(), elsewhere]


def parent_in(group: str) -> ev.Awaited:
    parent = start_time(os.getppid())
    assert parent is not None
    return ev.Awaited(os.getppid(), parent, group, ())


def test_new_clients_are_added_to_the_list(tmp_path: Path) -> None:
    roster = Roster(tmp_path / "list")
    roster.write([me()])
    roster.add(parent_in("another"))
    assert Roster(tmp_path / "list").load() == [me(), parent_in("another")]
    roster.write([me()])
    assert Roster(tmp_path / "list").load() == [me()]


def test_the_first_client_starts_the_list(tmp_path: Path) -> None:
    roster = Roster(tmp_path / "list")
    roster.add(me())
    assert Roster(tmp_path / "list").load() == [me()]


def test_a_client_that_reattached_is_awaited_once(tmp_path: Path) -> None:
    Roster(tmp_path / "list").write([me(), parent_in("another")])
    Roster(tmp_path / "list").add(ev.Awaited(me().pid, me().started, "kernel", ()))
    assert sorted(one.pid for one in Roster(tmp_path / "list").load()) == sorted(
        (os.getpid(), os.getppid())
    )


def test_a_truncated_entry_is_left_out(tmp_path: Path) -> None:
    roster = Roster(tmp_path / "list")
    roster.write([me()])
    roster.add(parent_in("another"))
    text = (tmp_path / "list").read_text()
    (tmp_path / "list").write_text(text[:-4])
    assert Roster(tmp_path / "list").load() == [me()]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"boot": 1}', '{"boot": "x", "clients": 3}', "\0", '{"boot":"BOOT","clients":[[1]]}',
             '{"boot":"BOOT","clients":[[1,"2","g",[["GPU",-1]]]]}']
)  # fmt: skip
def test_a_broken_list_is_ignored(tmp_path: Path, text: str) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (tmp_path / "list").write_text(text.replace("BOOT", boot))
    assert Roster(tmp_path / "list").load() == []


@pytest.mark.parametrize("preferences", ["3", '["kernel"]', '{"kernel": 3}'])
def test_a_list_with_broken_preferences_is_ignored(tmp_path: Path, preferences: str) -> None:
    Roster(tmp_path / "list").write([me()])
    text = (tmp_path / "list").read_text()
    (tmp_path / "list").write_text(
        text.replace('"preferences": {}', f'"preferences": {preferences}')
    )
    assert Roster(tmp_path / "list").load() == []


def test_a_list_of_an_earlier_version_has_no_preferences(tmp_path: Path) -> None:
    Roster(tmp_path / "list").write([me()])
    text = (tmp_path / "list").read_text()
    (tmp_path / "list").write_text(text.replace(', "preferences": {}', ""))
    roster = Roster(tmp_path / "list")
    assert roster.load() == [me()]
    assert roster.preferences == {}


def test_preferences_of_a_group_survive_a_restart(start: Start) -> None:
    """Without JupyterLab's servers, which would send them again once they have connected."""
    first = start()
    asked = {"priority": "interactive", "keep": True, "memory": 2 * GIB}
    left = first.path.with_name(first.path.name + ".clients")
    with first.client("a"), first.client("b"), first.control() as control:
        control.request("adjust", group="a", exclusive=True, **asked)
        until(lambda: '"interactive"' in left.read_text())
        first.kill()
        second = start()
        with (
            FakeClient(second.path, "a", second.gpu) as again,
            FakeClient(second.path, "c", second.gpu) as other,
        ):
            again.attach(reattach=True)
            other.attach()
            found = state(second, "a")["preferences"]
            unasked = state(second, "c")["preferences"]
    assert {name: found[name] for name in asked} == asked
    assert {name: found[name] for name in found if name not in asked} == {
        name: unasked[name] for name in unasked if name not in asked
    }


def test_preferences_of_an_unknown_kind_are_ignored(start: Start) -> None:
    first = start()
    left = first.path.with_name(first.path.name + ".clients")
    with first.client("a"), first.control() as control:
        control.request("adjust", group="a", keep=True)
        until(lambda: '"keep"' in left.read_text())
        first.kill()
        left.write_text(left.read_text().replace('"keep"', '"loud"'))
        second = start()
        with FakeClient(second.path, "a", second.gpu) as again:
            again.attach(reattach=True)
            assert not state(second, "a")["preferences"]["keep"]
    assert "earlier preferences of a are ignored" in second.log


def test_a_failed_write_does_no_harm(tmp_path: Path) -> None:
    roster = Roster(tmp_path / "nowhere" / "list")
    roster.write([me()])
    roster.write([])
    assert roster.load() == []


def test_a_failed_write_is_retried_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    roster = Roster(tmp_path / "folder" / "list")
    roster.write([me()])
    roster.write([me()])
    assert len(caplog.records) == 1
    (tmp_path / "folder").mkdir()
    roster.write([me()])
    assert roster.load() == [me()]


def test_the_drivers_figures_override_the_list() -> None:
    (usage,) = corrected(me(), GPU, 9 * GIB).usages
    assert (usage.promised, usage.resident, usage.unevictable, usage.context) == (
        7 * GIB, 7 * GIB, GIB, GIB,
    )  # fmt: skip
    assert corrected(me(), GPU, None) == me()
    assert len(corrected(me(), "GPU-other", GIB).usages) == 2


def restarted(held: int, fixed: int = 0) -> Machine:
    """Return a machine whose previous scheduler had a client that holds so many GiB, of which some cannot move."""
    m = Machine(foreign=held * GIB)
    usage = ev.Usage(GPU, (held - fixed) * GIB, (held - fixed) * GIB, 0, fixed * GIB)
    m.do(ev.Await((ev.Awaited(77, "1", "late", (usage,)),)))
    return m


def grow(gib: int, client: int) -> ev.Grow:
    return ev.Grow(client, 1, ev.Usage(GPU, gib * GIB), gib * GIB)


def test_memory_of_awaited_clients_is_not_foreign_use() -> None:
    m = restarted(80)
    assert (m.gpu["foreign"], m.gpu["pending_reclaim"]) == (0, 80 * GIB)
    m.sleep(20)
    assert (m.gpu["foreign"], m.gpu["pending_reclaim"]) == (0, 80 * GIB)


def test_an_allocation_that_awaited_clients_can_make_room_for_is_promised_and_waits() -> None:
    m = restarted(80)
    a = m.process("a", 60)
    a.request()
    assert a.reason == {"code": "returning", "params": {"lack": 40 * GIB, "gpu": GPU, "clients": 1}}


def test_an_allocation_that_may_not_fit_beside_awaited_clients_waits_for_the_answer() -> None:
    m = restarted(80, fixed=50)
    a = m.process("a", 0)
    assert of(ev.Grown, m.do(grow(60, a.number))) == []
    assert m.group("a")["state"] == "waiting"
    assert a.reason == {"code": "returning", "params": {"lack": 60 * GIB, "gpu": GPU, "clients": 1}}
    assert of(ev.Grown, m.sleep(10)) == []
    m.foreign = 0
    (grown,) = of(ev.Grown, m.do(ev.Desist((0,))) + m.sleep(10))
    assert grown.status == "swapped"


def test_memory_left_after_the_time_limit_is_foreign_use() -> None:
    m = restarted(80, fixed=50)
    a = m.process("a", 0)
    assert of(ev.Grown, m.do(grow(60, a.number))) == []
    (grown,) = of(ev.Grown, m.do(ev.Desist((0,), late=True)) + m.sleep(10))
    assert (grown.status, m.gpu["foreign"]) == ("device", 80 * GIB)


def test_a_client_that_reattaches_is_no_longer_awaited() -> None:
    m = restarted(80)
    usage = ev.Usage(GPU, 80 * GIB, 80 * GIB)
    m.foreign = 0
    m.do(ev.Attach(50, 77, "late", "late", "swap", usages=(usage,), reattach=True))
    assert not m.core.model.awaited
    assert (m.gpu["foreign"], m.gpu["pending_reclaim"], m.gpu["resident"]) == (0, 0, 80 * GIB)
