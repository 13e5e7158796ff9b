# SPDX-License-Identifier: BSD-3-Clause
"""A forked program behaves like one that was started: ``fork_server`` forks from the second start of each on."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from tests.support import fork_server

PATIENCE = 60.0

SHOW = """
import json, os, sys
print(json.dumps([sys.argv, sys.path[0], os.getcwd(), os.environ["MARK"], os.environ.get("GONE"), sys.stdin.read()]))
print("aside", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def environ() -> dict[str, str]:
    """Return an environment that no server has, yet."""
    return {**os.environ, "LANG_OF_TEST": uuid.uuid4().hex}


def test_a_child_has_its_own_arguments_environment_folder_and_streams(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GONE", "not for the program")
    (tmp_path / "program.py").write_text(SHOW)
    for program in (["-c", SHOW], ["-m", "program"], [str(tmp_path / "program.py")]):
        answers = [
            fork_server.run(
                [*program, "a", "b c"],
                environ={**environ, "MARK": "here", "PYTHONPATH": str(tmp_path)},
                cwd=tmp_path,
                timeout=PATIENCE,
            )
            for _ in range(2)
        ]
        started, forked = ((done.returncode, done.stdout, done.stderr) for done in answers)
        assert started[0] == 7
        assert "aside" in started[2]
        assert forked == started


def test_a_child_has_only_the_given_descriptors(environ: dict[str, str]) -> None:
    code = """
import os
found = os.listdir("/proc/self/fd")
# Not the descriptor that listed them.
print(sorted(int(name) for name in found if os.path.exists(f"/proc/self/fd/{name}")))
"""
    with open(os.devnull) as file:
        given = file.fileno()
        outputs = []
        for _ in range(3):
            process = fork_server.popen(
                ["-c", code],
                environ=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=[given],
                text=True,
            )
            assert process.stdout is not None
            with process.stdout:
                outputs.append(process.stdout.read())
            assert process.wait(PATIENCE) == 0
    assert outputs == [f"{[0, 1, 2, given]}\n"] * 3


def test_a_child_may_open_as_many_files_as_its_starter(environ: dict[str, str]) -> None:
    """Not as many as the starter of the first child, when the server began."""
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few, more = (256, before[1]), (300, before[1])
    try:
        for limit in (few, few, more):
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            done = fork_server.run(["-c", code], environ=environ, timeout=PATIENCE)
            assert done.stdout == f"{limit}\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_child_is_signalled_and_waited_for_as_usual(environ: dict[str, str]) -> None:
    code = "print('ready', flush=True); input()"
    for number in (signal.SIGTERM, signal.SIGKILL):
        for _ in range(2):
            process = fork_server.popen(
                ["-c", code],
                environ=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.01)
            os.kill(process.pid, number)
            deadline = time.monotonic() + PATIENCE
            while "State:\tZ" not in Path(f"/proc/{process.pid}/status").read_text():
                assert time.monotonic() < deadline, "it does not end, or no zombie stays"
                time.sleep(0.001)
            assert process.wait(PATIENCE) == process.poll() == -number
            assert not Path(f"/proc/{process.pid}").exists()
            process.kill()
            process.stdin.close()
            process.stdout.close()


def test_a_child_with_a_daemon_thread_is_finalised(environ: dict[str, str]) -> None:
    # Such a thread may be loading a library, and `exit` of C may crash then.
    code = """
import threading
class Last:
    def __del__(self):
        print("finalised", flush=True)
last = Last()
if DAEMON:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
    for daemon in (True, False):
        program = ["-c", code.replace("DAEMON", str(daemon))]
        fork_server.run(["-c", ""], environ=environ, timeout=PATIENCE)
        forked = fork_server.run(program, environ=environ, timeout=PATIENCE)
        assert (forked.returncode, forked.stdout) == (0, "finalised\n" if daemon else "")
