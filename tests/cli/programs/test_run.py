# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare import LIBRARIES
from jupyter_gpushare.cli.programs.run import notebook_of, program_name
from jupyter_gpushare.scheduler.protocol.client import ControlClient, ControlError
from tests.support.folders import socket_folder

RUN = [sys.executable, "-m", "jupyter_gpushare.cli.main", "run"]

#: Uses CUDA, and prints its environment and whether the interposer is attached.
CLIENT = """
import ctypes, json, os
library = ctypes.CDLL("libcuda.so.1")
assert library.cuInit(0) == 0
print(json.dumps({"attached": ctypes.CDLL(None).gpushare_attached(None), "pid": os.getpid(), **os.environ}))
"""


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with socket_folder() as folder:
        monkeypatch.setenv("GPUSHARE_SIM", "1")
        monkeypatch.setenv("GPUSHARE_SIM_NAME", Path(folder).name)
        monkeypatch.setenv("GPUSHARE_SOCKET", f"{folder}/s")
        yield Path(folder)
        wait_until(lambda: not answers(), "a scheduler was left behind")


def answers() -> bool:
    try:
        with ControlClient(timeout=60.0) as client:
            client.request("status")
    except ControlError:
        return False
    return True


def wait_until(condition: object, what: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_program_shares_without_a_jupyter_server() -> None:
    done = run(
        "--memory",
        "1GiB",
        "--gpu",
        "0",
        "--name",
        "mine",
        "--backend",
        "swap",
        "--oversubscribe",
        "--",
        sys.executable,
        "-c",
        CLIENT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["attached"] == 1
    assert found["GPUSHARE_MEMORY"] == str(1 << 30)
    assert found["CUDA_VISIBLE_DEVICES"] == "0"
    assert found["GPUSHARE_NAME"] == "mine"
    assert found["GPUSHARE_BACKEND"] == "swap"
    assert found["GPUSHARE_OVERSUBSCRIBE"] == "1"
    assert found["GPUSHARE_GROUP"].startswith("run-")
    assert found["LD_PRELOAD"].split(":")[0] == str(LIBRARIES / "libgpushare.so")


def test_the_scheduler_runs_as_long_as_the_program() -> None:
    with subprocess.Popen(
        [*RUN, "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as program:
        wait_until(answers, "no scheduler")
        # The second program finds the scheduler, which keeps running after the first program has ended.
        with subprocess.Popen(
            [*RUN, "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as other:
            wait_until(lambda: _name(other.pid) == "cat", "the second program")
            assert program.stdin is not None
            program.stdin.close()
            assert program.wait(60) == 0
            wait_until(answers, "no scheduler for the second program")
            assert other.stdin is not None
            other.stdin.close()
            assert other.wait(60) == 0
    wait_until(lambda: not answers(), "the scheduler outlived both")


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_the_program_replaces_the_command() -> None:
    code = "import os, signal; print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGTERM)"
    command = [*RUN, "--", sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        out, _ = program.communicate(timeout=60)
    assert out == f"{program.pid}\n"
    assert program.returncode == -15


def test_exit_status_and_arguments_are_those_of_the_program() -> None:
    done = run("sh", "-c", 'printf "%s|" "$@"; exit 7', "sh", "--memory", "-x", "a b")
    assert (done.returncode, done.stdout) == (7, "--memory|-x|a b|")


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["--memory", "much", "--", "true"], 2, "use a number with a unit, such as 20GiB"),
        (["--gpu", "first", "--", "true"], 2, "use an index such as 0, or a UUID"),
        (["--backend", "fast", "--", "true"], 2, "use auto, swap, managed or plain"),
        ([], 2, "no program given"),
        (["--"], 2, "no program given"),
        (["--", "no-such-program-here"], 127, "program not found"),
        (["--", __file__], 126, "not an executable file"),
    ],
)
def test_bad_input(arguments: list[str], status: int, complaint: str) -> None:
    done = run(*arguments)
    assert done.returncode == status
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_driver_the_program_runs_without_sharing(place: Path) -> None:
    done = run(
        "--",
        "sh",
        "-c",
        "echo $LD_PRELOAD$GPUSHARE_GROUP-",
        GPUSHARE_SIM="",
        GPUSHARE_DRIVER=str(place / "none"),
    )
    assert (done.returncode, done.stdout) == (0, "-\n")
    assert done.stderr.count("\n") == 1
    assert "running sh without GPU sharing" in done.stderr


def test_with_a_file_as_the_socket_the_program_runs_without_sharing(place: Path) -> None:
    (place / "s").write_text("")
    done = run("--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "is not a socket" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "environ", "name"),
    [
        (["nvidia-smi", "-L"], {}, "nvidia-smi"),
        (["/usr/bin/python3.11", "-u", "dir/train.py", "--epochs", "3"], {}, "train.py"),
        (["python", "-m", "torch.distributed.run", "x.py"], {}, "torch.distributed.run"),
        (["python"], {}, "python"),
        (
            ["python", "-m", "ipykernel_launcher", "-f", "c.json"],
            {"JPY_SESSION_NAME": "/n/a.ipynb"},
            "a.ipynb",
        ),
    ],
)
def test_programs_are_named_by_script_module_or_notebook(
    command: list[str], environ: dict[str, str], name: str
) -> None:
    assert program_name(command, environ) == name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/env/bin/python /env/bin/papermill -k shared deep/in.ipynb out.ipynb", "in.ipynb"),
        ("python -m papermill in.ipynb out.ipynb", "in.ipynb"),
        ("/env/bin/python /env/bin/jupyter-execute --inplace run.ipynb", "run.ipynb"),
        ("python -m nbconvert --execute run.ipynb", "run.ipynb"),
        # It may run others, too.
        ("/env/bin/python /env/bin/jupyter-lab plots.ipynb", ""),
        ("python nightly.py papermill in.ipynb", ""),
        ("papermill", ""),
        ("", ""),
    ],
)
def test_a_runners_command_names_its_notebook(command: str, name: str) -> None:
    assert notebook_of(command.split()) == name


@pytest.mark.parametrize(
    ("environment", "name"),
    [({}, "shared"), ({"JPY_SESSION_NAME": "/home/ada/plots.ipynb"}, "plots.ipynb")],
)
def test_the_kernelspecs_name_is_used_if_the_notebook_is_unknown(
    environment: dict[str, str], name: str
) -> None:
    done = run("--default-name", "shared", "--", sys.executable, "-c", CLIENT, **environment)
    assert json.loads(done.stdout)["GPUSHARE_NAME"] == name


def test_a_program_that_cannot_be_executed(place: Path) -> None:
    program = place / "program"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    done = run("--", str(program))
    assert done.returncode == 126
    assert "cannot run" in done.stderr
    assert done.stderr.count("\n") == 1
