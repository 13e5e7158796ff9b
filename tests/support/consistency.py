# SPDX-License-Identifier: BSD-3-Clause
"""What a status may never say, whatever happened before: figures that contradict each other."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.ledger import Ledger
from jupyter_gpushare.scheduler.views.estimates import Forecast
from jupyter_gpushare.scheduler.views.status import status

PARTS = ("resident", "unevictable", "contexts", "foreign", "pending_reclaim", "free")


def validate(core: Core) -> None:
    """Check the sums that a core keeps."""
    Ledger(core.model, core.turn).validate()


def check_status(core: Core, now: float) -> None:
    """Check the status of a core, with estimates."""
    said = status(core, now, None, Forecast().estimates(core, now))
    check(said)
    waits = {wait.group.id: wait for wait in reversed(core.queue)}
    for group in said["groups"]:
        params = group["reason"]["params"] if group["reason"] else {}
        if params.get("lack") is not None and group["id"] in waits:
            need = core.model.need(waits[group["id"]], core.gpus[params["gpu"]])
            assert params["lack"] <= max(0, need), f"lacks more than it needs: {group}"


def check(said: dict[str, Any]) -> None:
    """Check a status as clients see it."""
    for gpu in said["gpus"]:
        assert min(gpu[part] for part in (*PARTS, "used", "available")) >= 0, gpu
        assert sum(gpu[part] for part in PARTS) == gpu["total"], f"the bar does not add up: {gpu}"
        assert gpu["used"] + gpu["free"] == gpu["total"], gpu
        assert gpu["available"] <= gpu["free"], gpu
        shares = [s for g in said["groups"] for s in g["gpus"] if s["uuid"] == gpu["uuid"]]
        for part, whole in (("resident", "resident"), ("unevictable", "unevictable")):
            assert sum(share[part] for share in shares) == gpu[whole], (gpu, shares)
        assert sum(share["context"] for share in shares) <= gpu["contexts"], (gpu, shares)
    totals = {gpu["uuid"]: gpu["total"] for gpu in said["gpus"]}
    swapped = disk = 0
    for group in said["groups"]:
        for share in group["gpus"]:
            assert min(size for size in share.values() if isinstance(size, int)) >= 0, share
            parts = share["resident"] + share["swapped"] + share["disk"]
            assert parts == share["footprint"], share
            assert share["clean"] <= share["resident"], share
            assert share["shared"] <= share["swapped"], share
            swapped += share["swapped"]
            disk += share["disk"]
        check_wait(group, totals)
    host = said["host"]
    assert min(host["swapped"], host["shared"]) >= 0, host
    assert swapped <= host["swapped"] + host["shared"], (
        "more is evicted than there is in host memory"
    )
    assert disk <= host["disk"], "more is on disk than there is"


def check_wait(group: dict[str, Any], totals: dict[str, int]) -> None:
    """Check what is said of one wait."""
    params = group["reason"]["params"] if group["reason"] else {}
    if params.get("lack") is not None:
        assert params["lack"] >= 0, group
        assert params["lack"] <= params.get("need", params["lack"]), group
    if "arrived" in params:
        assert params["arrived"] <= params["footprint"], group
    for key in ("fixed", "foreign", "pending_reclaim"):
        if key in params:
            assert 0 <= params[key] <= totals[params["gpu"]], group
    estimate = group["estimate"]
    if estimate is not None:
        assert 0 <= estimate["low"] <= estimate["seconds"] <= estimate["high"], group
        for key in ("yields_in", "until_in"):
            if params.get(key) is not None:
                assert estimate["high"] <= params[key], f"longer than it takes at most: {group}"
