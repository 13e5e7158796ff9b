# SPDX-License-Identifier: BSD-3-Clause
"""The audit log: its contents, what it leaves out, and that no user can displace its lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jupyter_gpushare.scheduler.observability.audit import MOST_A_MINUTE, Audit, line
from jupyter_gpushare.scheduler.protocol import wire as protocol

ADMIN = {"user": "root", "uid": 0, "admin": True}
ADA = {"user": "ada", "uid": 1000, "admin": False}
NOW = 1.7e9


def drain(gpu: str = "GPU-0") -> dict[str, Any]:
    return {"op": "drain", "protocol": protocol.CONTROL_VERSION, "gpu": gpu, "on": True}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def test_a_line_has_user_action_target_and_result() -> None:
    assert line(NOW, ADMIN, {**drain(), "on_behalf": "ada"}, "ok") == {
        "time": NOW, "user": "root", "uid": 0, "on_behalf": "ada", "op": "drain", "target": "GPU-0",
        "given": {"gpu": "GPU-0", "on": True}, "outcome": "ok",
    }  # fmt: skip


def test_only_an_administrator_acts_for_others() -> None:
    found = line(NOW, ADA, {"op": "release", "group": "g", "on_behalf": "root"}, "ok")
    assert found is not None
    assert found["on_behalf"] is None


def test_secrets_long_texts_and_queries_are_left_out() -> None:
    for op in ("status", "cell", "audit", None, []):
        assert line(NOW, ADMIN, {"op": op}, "ok") is None
    found = line(NOW, ADA, {"op": "login", "token": "secret", "more": "x" * 10_000}, "no")
    assert found is not None
    assert "secret" not in json.dumps(found)
    assert len(json.dumps(found)) < 1000


def test_the_file_is_private_and_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    first = Audit(path)
    first.record(NOW, ADMIN, drain(), "ok")
    first.record(NOW + 1, ADA, drain(), "'drain' is only for the scheduler's administrators")
    first.close()
    assert path.stat().st_mode & 0o777 == 0o600
    second = Audit(path)
    assert [one["user"] for one in second.last(10)] == ["root", "ada"]
    second.record(NOW + 2, ADMIN, drain("GPU-1"), "ok")
    assert [one["target"] for one in second.since(NOW + 1)] == ["GPU-0", "GPU-1"]
    assert [one["target"] for one in second.last(1)] == ["GPU-1"]
    second.close()


def test_the_file_is_rotated_by_size(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path, size=2000, kept=2)
    for number in range(100):
        audit.record(NOW + number, ADMIN, drain(f"GPU-{number}"), "ok")
    audit.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(file.stat().st_size <= 2000 for file in files)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    found = audit.since(0)
    assert [one["time"] for one in found] == sorted(one["time"] for one in found)
    assert found[-1]["target"] == "GPU-99"


def test_lines_of_a_user_beyond_the_limit_are_counted_instead_of_written(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    minute = NOW - NOW % 60
    for number in range(5 * MOST_A_MINUTE):
        audit.record(minute + number / 100, ADA, {"op": "release", "group": "g"}, "ok")
    audit.record(minute + 30, ADMIN, drain(), "ok")
    assert len(lines(path)) == MOST_A_MINUTE + 1
    audit.record(minute + 60, ADA, {"op": "release", "group": "g"}, "ok")
    *_, omitted, last = lines(path)
    assert (omitted["user"], omitted["op"]) == ("ada", "omitted")
    assert omitted["given"] == {"lines": 4 * MOST_A_MINUTE}
    assert last["op"] == "release"
    audit.close()


def test_without_a_file_only_recent_lines_are_available(tmp_path: Path) -> None:
    audit = Audit(None)
    audit.record(NOW, ADMIN, drain(), "ok")
    assert audit.since(NOW) == audit.last(5)
    assert list(tmp_path.iterdir()) == []
    audit.close()
