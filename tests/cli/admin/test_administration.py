# SPDX-License-Identifier: BSD-3-Clause
"""Commands for administrators: ``gpushare drain``, ``hold``, ``maintenance``, ``audit`` and ``report``."""

from __future__ import annotations

import json
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.cli.show.report import entry_text, moment
from jupyter_gpushare.cli.show.status import render
from jupyter_gpushare.scheduler.core import messages as ev
from tests.cli.conftest import Command
from tests.support.scheduler import GIB, Scheduler, Start, state, until

Node = Callable[[], Scheduler]


@pytest.fixture
def node(start: Start, environ: dict[str, str], tmp_path: Path) -> Node:
    """Start a node's scheduler that has a state directory."""
    (tmp_path / "gpushare").mkdir()
    config = tmp_path / "config.json"
    folder = str(tmp_path / "state")
    config.write_text(
        json.dumps(
            {
                "NodeScheduler": {
                    "socket": environ["GPUSHARE_SOCKET"],
                    "state_dir": folder,
                    "prices": {"gpu_hour": 3600, "kwh": 3600, "currency": "EUR"},
                }
            }
        )
    )
    return lambda: start("--config", str(config))


def status(scheduler: Scheduler) -> dict[str, Any]:
    with scheduler.control() as control:
        found: dict[str, Any] = control.request("status")["status"]
    return found


def test_orders_of_administrators_survive_the_scheduler(node: Node, gpushare: Command) -> None:
    scheduler = node()
    with scheduler.client("aaaa", name="train.ipynb") as a:
        a.grow(2 * GIB)
        a.run()
        done = gpushare("hold", "train.ipynb")
        assert (done.returncode, done.stdout) == (
            0,
            "train.ipynb is on hold. Only an administrator can resume it: "
            "`gpushare hold train.ipynb --off`.\n",
        )  # fmt: skip
        a.expect(ev.Revoke)
        a.release()
        a.request()
        until(lambda: state(scheduler, "aaaa")["state"] == "waiting")
        refused = gpushare("unfreeze", "train.ipynb")
        assert refused.returncode == 2
        assert "only an administrator can let it continue" in refused.stderr
        assert "on hold; only an administrator can resume it" in gpushare("status").stdout
        assert gpushare("drain", "0").stdout.startswith("Draining GPU 0: no new leases")
        assert a.evict().bytes == 2 * GIB
        assert gpushare("maintenance", "stops  at 18:00").returncode == 0
    scheduler.close()

    scheduler = node()
    found = status(scheduler)
    assert found["maintenance"] == "stops at 18:00"
    assert [gpu["draining"] for gpu in found["gpus"]] == [True]
    shown = gpushare("status").stdout
    assert shown.startswith("maintenance: stops at 18:00\n")
    assert "GPU 0 is draining: no new leases are granted" in shown
    assert "note:" not in shown
    with scheduler.client("aaaa", name="train.ipynb") as a:
        # There is room for its memory, but no lease.
        a.grow(GIB)
        a.request()
        until(lambda: state(scheduler, "aaaa").get("state") == "waiting")
        assert gpushare("drain", "0", "--off").stdout == "GPU 0 accepts new leases again.\n"
        assert state(scheduler, "aaaa")["reason"]["code"] == "on_hold"
        gpushare("hold", "aaaa", "--off")
        a.take()
        assert gpushare("evict", "aaaa").stdout == (
            "Released the GPU held by train.ipynb. "
            "The memory of train.ipynb is being evicted to the host.\n"
        )
        a.expect(ev.Revoke)
        a.release()
        assert a.evict().bytes == GIB
    assert gpushare("maintenance", "--off").stdout == "Maintenance message cleared.\n"
    assert status(scheduler)["maintenance"] is None


def test_the_audit_log_has_all_changes(node: Node, gpushare: Command, tmp_path: Path) -> None:
    scheduler = node()
    with scheduler.client("aaaa", name="train.ipynb"):
        gpushare("hold", "train.ipynb")
        gpushare("unfreeze", "train.ipynb")
        gpushare("status")
    gpushare("shares", "user:*", "--gpus", "1")
    with scheduler.control() as control:
        control.request("drain", gpu="0", on_behalf="ada@hub")
    scheduler.close()
    scheduler = node()
    found = json.loads(gpushare("audit", "--json").stdout)
    assert [(one["op"], one["target"]) for one in found] == [
        ("hold", "train.ipynb"),
        ("adjust", "train.ipynb"),
        ("entitle", "user:*"),
        ("drain", "0"),
    ]
    assert found[0]["outcome"] == found[2]["outcome"] == "ok"
    assert "only an administrator" in found[1]["outcome"]
    assert found[3]["on_behalf"] == "ada@hub"
    assert json.loads(gpushare("audit", "--since", "1h", "--json").stdout) == found
    *_, last = gpushare("audit").stdout.splitlines()
    assert "ada@hub (by " in last
    assert last.endswith("drain 0")
    path = tmp_path / "state" / "audit.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_report_includes_the_time_before_a_restart(node: Node, gpushare: Command) -> None:
    scheduler = node()
    with scheduler.client("a") as a, scheduler.client("b") as b, scheduler.control() as control:

        def report(name: str) -> float:
            return float(control.request("report")["report"][name] or 0.0)

        # The simulated GPU always consumes something.
        until(lambda: report("idle_energy") > 0)
        a.grow(6 * GIB)
        a.run()
        b.grow(6 * GIB)
        until(lambda: report("used") > 0)
        (gpu,) = control.request("status")["status"]["gpus"]
        assert gpu["power"] >= 72
        assert f"{gpu['power']} W" in render(control.request("status")["status"]).plain
    scheduler.close()
    node()
    found = json.loads(gpushare("report", "--week", "--json").stdout)
    assert (found["gpus"], found["avoided"], found["leases"]) == (1, 1, 1)
    assert 0 < found["used"] <= found["present"]
    assert sum(found["users"].values()) == pytest.approx(found["used"], abs=0.2)
    assert 0 < found["idle_energy"] <= found["energy"]
    done = gpushare("report")
    assert "1 GPU, 1 user, " in done.stdout
    assert "1 out-of-memory error avoided, 0 raised; 0.00" in done.stdout
    assert " kWh (0.00" in done.stdout
    assert done.stdout.count("\n") == 1
    found = json.loads(gpushare("report", "--by", "notebook", "--json").stdout)
    (row,) = [row for row in found["rows"] if row["seconds"]]
    # The price of an hour makes a second cost 1 EUR, and a kilojoule, too.
    cost = row["seconds"] + (row["energy"] or 0.0) / 1000
    assert row["cost"] == pytest.approx(cost, abs=0.01)
    assert found["idle_cost"] == pytest.approx(found["idle_energy"] / 1000, abs=0.01)
    done = gpushare("report", "--by", "user", "day")
    *_, head, line = done.stdout.splitlines()
    assert head.split()[:3] == ["DAY", "USER", "GPU"]
    assert line.endswith(" EUR")


def test_metrics_are_printed(scheduler: Scheduler, gpushare: Command) -> None:
    done = gpushare("metrics")
    assert (done.returncode, done.stderr) == (0, "")
    assert "gpushare_up 1.0\n" in done.stdout
    assert f'gpushare_gpu_memory_bytes{{gpu="{scheduler.gpu}",kind="total"}}' in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["drain", "7"], "'7' matches none of this machine's GPUs: 0 (GPU-"),
        (["hold", "nobody"], "no group on the GPU has the id or name 'nobody'"),
        (["evict", "nobody"], "no group on the GPU"),
        (["maintenance"], "gpushare maintenance TEXT, or gpushare maintenance --off"),
        (["maintenance", "x", "--off"], "gpushare maintenance TEXT"),
        (["maintenance", "x" * 501], "500 characters"),
        (["audit", "--since", "soon"], "use for example 2h, 3d, 2026-03-01"),
        (["report", "--week", "--since", "2h"], "--week cannot be combined with --since"),
        (["report", "--since", "1h", "--until", "2h"], "'since' must be before 'until'"),
        (["report", "--user", "ada"], "--user requires --by"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    scheduler: Scheduler, gpushare: Command, arguments: list[str], words: str
) -> None:
    done = gpushare(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "request_",
    [
        {"op": "drain", "gpu": 0},
        {"op": "drain", "gpu": "0", "on": "yes"},
        {"op": "hold", "group": ["a"]},
        {"op": "hold", "group": "a", "on": 1},
        {"op": "evict"},
        {"op": "maintenance", "text": 7},
        {"op": "audit", "since": "yesterday"},
        {"op": "audit", "since": float("1e300")},
        {"op": "report", "until": True},
        {"op": "report", "since": -1},
    ],
)
def test_invalid_requests_are_refused_and_change_nothing(
    scheduler: Scheduler, request_: dict[str, Any]
) -> None:
    from jupyter_gpushare.scheduler.protocol.client import ControlError

    before = status(scheduler)
    with scheduler.control() as control, pytest.raises(ControlError, match=r"must|may|'group'"):
        control.request(**request_)
    after = status(scheduler)
    assert (after["gpus"][0]["draining"], after["maintenance"]) == (False, None)
    assert after["scheduler"]["pid"] == before["scheduler"]["pid"]


def test_times_can_be_ages_or_dates() -> None:
    now = time.time()
    assert moment("2h") == pytest.approx(now - 7200, abs=5)
    assert moment("2026-03-01T12:00+00:00") == 1772366400
    with pytest.raises(ArgumentTypeError):
        moment("2 fortnights")


def test_an_entry_of_a_newer_scheduler_is_shown() -> None:
    assert entry_text({"op": "new", "user": None, "uid": 7, "time": 0}).endswith("uid 7 new: None")
