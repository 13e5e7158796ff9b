# SPDX-License-Identifier: BSD-3-Clause
"""Commands that show or change what the scheduler does, and ``gpushare scheduler``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare import docs_url
from jupyter_gpushare.cli.main import COMMANDS, main
from jupyter_gpushare.cli.show.status import render
from jupyter_gpushare.kernel_provisioner.in_kernel.verbs import DONE
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.views.words import answers
from jupyter_gpushare.scheduler.views.words.amounts import percent
from tests.cli.conftest import Command
from tests.support.client import PATIENCE
from tests.support.folders import socket_folder
from tests.support.scheduler import GIB, Scheduler, state, until


def test_the_status_shows_running_and_waiting_notebooks_with_reasons(
    scheduler: Scheduler, gpushare: Command
) -> None:
    # Its turn must not end before the command is done, however slow the machine is.
    assert gpushare("set", "quantum", "600").returncode == 0
    with (
        scheduler.client("aaaa", name="train.ipynb") as a,
        scheduler.client("bbbb", name="plot.ipynb") as b,
    ):
        assert gpushare("interactive", "aaaa").returncode == 0  # also after 2 s
        a.grow(6 * GIB)
        a.run()
        b.grow(6 * GIB)
        b.request()
        until(lambda: state(scheduler, "bbbb").get("state") == "waiting")
        done = gpushare("status")
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        of_state = {line.split()[0]: line for line in lines if line.strip()}
        running, waiting = of_state["running"], of_state["waiting"]
        assert running.split()[1:3] == ["train.ipynb", "aaaa"]
        assert waiting.startswith("waiting (1)")
        assert "plot.ipynb" in waiting
        assert "GiB more; " in waiting
        assert "train.ipynb's turn ends within" in waiting
        # Columns are aligned.
        head = next(line for line in lines if line.startswith("STATE"))
        assert head.index("NAME") == running.index("train.ipynb") == waiting.index("plot.ipynb")
        assert "simulated driver" in lines[-1]


def test_the_status_shows_notices(scheduler: Scheduler, gpushare: Command) -> None:
    with scheduler.control() as control:
        control.request("notice", group="k1", code="started_without_interposer", params={})
    assert "note: k1 uses the GPU without taking turns" in gpushare("status").stdout


def test_the_status_shows_the_pool_once_it_has_pages(
    scheduler: Scheduler, gpushare: Command
) -> None:
    assert "pool" not in gpushare("status").stdout
    with (
        scheduler.client("a") as a,
        scheduler.client("b") as b,
    ):
        # More than the 8 GiB of the GPU, so pages are prepared for the memory to evict.
        a.grow(5 * GIB)
        b.grow(4 * GIB)

        def ready() -> int:
            with scheduler.control() as control:
                return int(control.request("status")["status"]["host"]["pool"]["prepared"])

        until(lambda: ready() > 0)
        footer = gpushare("status").stdout.splitlines()[-1]
        assert re.search(r", pool 0 B in use, [\d.]+ [KMG]iB ready, 0 B page-locked, ", footer)


def test_the_status_as_json_is_that_of_the_scheduler(
    scheduler: Scheduler, gpushare: Command
) -> None:
    done = gpushare("status", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["scheduler"]["pid"] == scheduler.process.pid


def test_watching_prints_a_status_for_each_change(
    scheduler: Scheduler, environ: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "jupyter_gpushare.cli.main", "status", "--watch", "--json"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["groups"] == []
        with scheduler.client("a"):
            for line in watching.stdout:
                if json.loads(line)["groups"]:
                    break
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PATIENCE) == 130


def test_settings_are_changed_and_printed(scheduler: Scheduler, gpushare: Command) -> None:
    done = gpushare("set", "--quantum", "3", "--anti-thrash", "on", "--policy", "fcfs")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        "Set anti-thrash to on.",
        "Set policy to fcfs.",
        "Set quantum to 3.0.",
    ]
    done = gpushare("set", "quantum", "auto", "policy", "burst", "anti-thrash", "off")
    assert done.stdout.splitlines() == [
        "Set quantum to auto.",
        "Set policy to burst.",
        "Set anti-thrash to off.",
    ]
    assert gpushare("set", "hibernate-after", "off").stdout == "Set hibernate-after to off.\n"
    assert sorted(gpushare("set").stdout.splitlines()) == [
        "anti-thrash: off",
        "hibernate-after: off",
        "policy: burst",
        "prefetch: on",
        "quantum: auto",
    ]
    assert gpushare("set", "--prefetch", "off").stdout == "Set prefetch to off.\n"
    assert gpushare("set", "prefetch", "on").stdout == "Set prefetch to on.\n"
    wrong = gpushare("set", "prefetch", "maybe")
    assert wrong.returncode == 2
    assert "use on or off" in wrong.stderr
    assert "policy burst, quantum auto" in gpushare("status").stdout


def test_release_and_evict(scheduler: Scheduler, gpushare: Command) -> None:
    with scheduler.client("kernel-1", name="a.ipynb") as a:
        a.grow(GIB)
        a.run()
        # The name is optional while there is only one.
        assert gpushare("release").stdout == "Released the GPU held by a.ipynb.\n"
        a.expect(ev.Revoke)
        a.release()
        until(lambda: state(scheduler, "kernel-1").get("state") == "idle")
        assert gpushare("release", "kernel").stdout == "a.ipynb does not hold the GPU.\n"
        assert gpushare("wake").stdout == "a.ipynb is not hibernated.\n"
        done = gpushare("evict", "a.ipynb")
        assert done.stdout == "The memory of a.ipynb is being evicted to the host.\n"
        assert a.evict().bytes == GIB
        with scheduler.client("kernel-2", name="b.ipynb") as b:
            done = gpushare("release")
            assert done.returncode == 2
            (line,) = done.stderr.splitlines()
            assert "a.ipynb (kernel-1)" in line
            assert "b.ipynb (kernel-2)" in line
            b.run()
            assert gpushare("evict", "kernel-2").stdout == (
                "Released the GPU held by b.ipynb. The memory of b.ipynb is being evicted to the host.\n"
            )


def test_commands_print_what_they_have_changed(scheduler: Scheduler, gpushare: Command) -> None:
    with scheduler.client("kernel-1", name="a.ipynb") as a:
        a.grow(GIB)
        for arguments, what, amount in (
            (["background"], "background", ""),
            (["interactive", "a.ipynb"], "interactive", ""),
            (["auto", "a.ipynb"], "auto", ""),
            (["keep", "on"], "keep on", ""),
            (["keep", "kernel-1", "off"], "keep off", ""),
            (["limit", "20GiB"], "memory", "20 GiB"),
            (["limit", "a.ipynb", "50%"], "limit", percent(0.5)),
            (["limit", "a.ipynb", "off"], "limit off", ""),
            (["memory", "a.ipynb", "2GiB"], "memory", "2 GiB"),
            (["memory", "off"], "memory off", ""),
            (["request", "12.5%"], "request", percent(0.125)),
            (["request", "kernel-1", "off"], "request off", ""),
            (["weight", "2.5"], "weight", "2.5"),
            (["weight", "1"], "weight", "1"),
        ):
            done = gpushare(*arguments)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout == DONE[what].format("a.ipynb", amount) + "\n"
        assert gpushare("freeze").stdout == (
            "Froze a.ipynb. It cannot use the GPU until you run `gpushare unfreeze`.\n"
        )
        assert gpushare("unfreeze", "kernel").stdout == "a.ipynb can use the GPU again.\n"
        for arguments in (["background"], ["limit", "2G"], ["limit", "50%"]):
            gpushare(*arguments)
        assert f"background, memory 2 GiB, limit {percent(0.5)}" in gpushare("status").stdout
        with scheduler.client("kernel-2", name="b.ipynb"):
            for arguments in (["background"], ["keep", "on"], ["limit", "2G"], ["freeze"]):
                done = gpushare(*arguments)
                assert (done.returncode, done.stdout) == (2, "")
                assert "b.ipynb (kernel-2)" in done.stderr
            done = gpushare("release", "b.ipnb")
            assert done.returncode == 2
            assert done.stderr.endswith("(did you mean 'b.ipynb'?)\n")


def test_a_frozen_notebook_waits_with_a_reason(scheduler: Scheduler, gpushare: Command) -> None:
    with scheduler.client("kernel-1", name="a.ipynb") as a:
        a.grow(GIB)
        assert gpushare("freeze").returncode == 0
        a.request()
        until(lambda: state(scheduler, "kernel-1").get("state") == "waiting")
        (line,) = [x for x in gpushare("status").stdout.splitlines() if x.startswith("waiting")]
        assert "frozen    frozen; unfreeze it to continue" in line
        assert gpushare("unfreeze").returncode == 0
        a.expect(ev.Grant)


def test_an_estimate_is_shown_with_its_interval() -> None:
    group = {
        **{"id": "kernel-1", "name": "a.ipynb", "state": "waiting", "position": 1, "since": 1.0},
        **{"gpus": [], "yields_in": None, "preferences": None},
        "reason": {"code": "behind", "params": {"ahead_name": "b.ipynb"}},
        "estimate": {"seconds": 4.0, "low": 2.5, "high": 9.0},
    }
    status = {
        **{"time": 3.0, "gpus": [], "groups": [group], "notices": []},
        "settings": {
            **{"quantum": "auto", "anti_thrash": "auto", "policy": "burst"},
            "hibernate_after": None,
        },
        "host": {"swapped": 0, "budget": 0, "pool": None},
        "driver": {"simulated": True},
    }
    shown = render(answers.status(status)).plain
    assert "b.ipynb is ahead in the queue; about 4 s (2-9 s)" in shown


def test_the_history_is_a_table_or_json(scheduler: Scheduler, gpushare: Command) -> None:
    assert gpushare("history").stdout.startswith("No notebook has used the GPU in the last ")
    with scheduler.client("kernel-1", name="a.ipynb") as a:
        a.grow(GIB)
        a.run()
        head, *rows = gpushare("history").stdout.splitlines()
        assert head.split() == ["TIME", "NOTEBOOK", "EVENT", "DURATION", "MEMORY"]
        assert any(re.search(r"^\d\d:\d\d:\d\d  a\.ipynb +running ", row) for row in rows)
        found = json.loads(gpushare("history", "--json").stdout)
        assert {"burst"} <= {span["kind"] for span in found["spans"]}
        assert found["left_out"] == 0


def test_the_order_of_the_queue_is_explained(scheduler: Scheduler, gpushare: Command) -> None:
    nobody = gpushare("explain")
    assert nobody.stdout == "No notebook is waiting for the GPU or being throttled.\n"
    with (
        scheduler.client("aaaa", name="train.ipynb") as a,
        scheduler.client("bbbb", name="plot.ipynb") as b,
        scheduler.client("cccc", name="late.ipynb") as c,
    ):
        a.grow(6 * GIB)
        # Its turn must not end, however long the commands take.
        gpushare("set", "quantum", "600")
        gpushare("interactive", "aaaa")
        a.run()
        for one in (b, c):
            one.grow(6 * GIB)
            one.request()
            until(lambda group=one.group: state(scheduler, group).get("state") == "waiting")
        lines = gpushare("explain").stdout.splitlines()
        assert lines[0].startswith("plot.ipynb has been waiting for ")
        assert "GiB more" in lines[0]
        assert lines[1].startswith("  interactive: ")
        assert lines[3] == f"  see {docs_url('reference/messages')}#needs-memory"
        assert lines[4].startswith("late.ipynb has been waiting for ")
        assert lines[6].startswith("  1. plot.ipynb has been waiting ")
        assert lines[7] == "  to run next: wait for plot.ipynb"
        (found,) = json.loads(gpushare("explain", "late.ipynb", "--json").stdout)["groups"]
        assert [(one["group"], one["code"]) for one in found["before"]] == [("bbbb", "came")]


def test_entitlements_are_set_and_listed(scheduler: Scheduler, gpushare: Command) -> None:
    assert (
        gpushare("shares").stdout
        == "No entitlements are configured; all users have equal shares.\n"
    )
    done = gpushare("shares", "user:ada", "--request", "50%", "--memory", "20GiB")
    assert (done.returncode, done.stderr) == (0, "")
    given = f"request {percent(0.5)}, 20 GiB per GPU"
    assert done.stdout == f"Set the entitlements of user:ada: {given}.\n"
    # Entitlements that are not given keep their values.
    gpushare("shares", "user:ada", "--weight", "2", "--request", "25%")
    gpushare("shares", "team:course", "--limit", "40%", "--member", "ben", "--member", "cy")
    gpushare("shares", "user:*", "--gpus", "1", "--host", "64GiB")
    head, team, others, ada = gpushare("shares").stdout.splitlines()
    assert head.split()[6:] == ["MEMORY", "GPUS", "HOST", "USED", "MEMBERS"]
    assert team.split() == ["team:course", "40%", "1", "0%", "ben,", "cy"]
    assert others.split()[:5] == ["user:*", "1", "1", "64", "GiB"]
    assert ada.split() == ["user:ada", "25%", "2", "20", "GiB", "0%"]
    gpushare("shares", "user:*", "--gpus", "off", "--host", "off")
    done = gpushare("shares", "user:ada", "--off")
    assert done.stdout == "Removed the entitlements of user:ada.\n"
    found = json.loads(gpushare("shares", "--json").stdout)
    assert found.keys() == {"team:course"}
    assert (found["team:course"]["limit"], found["team:course"]["members"]) == (0.4, ["ben", "cy"])


def take_turns(scheduler: Scheduler) -> None:
    with scheduler.client("aaaa") as a, scheduler.client("bbbb") as b:
        a.grow(6 * GIB)
        a.run()
        b.grow(6 * GIB)
        b.request()
        until(lambda: state(scheduler, "bbbb").get("state") == "waiting")
        a.end_burst("cell")
        a.expect(ev.Revoke)
        a.release()
        a.evict()
        b.take()


def test_events_are_recorded_and_replayed(
    scheduler: Scheduler, gpushare: Command, environ: dict[str, str], tmp_path: Path
) -> None:
    take_turns(scheduler)
    done = gpushare("replay", "--last")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        r"Replayed \d+ events over [\d.]+ s: all \d+ decisions are the same\.\n", done.stdout
    )

    file = tmp_path / "recording"
    command = [sys.executable, "-m", "jupyter_gpushare.cli.main", "record", str(file)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as recording:
        until(file.exists)
        take_turns(scheduler)
        recording.send_signal(signal.SIGINT)
        said, _ = recording.communicate(timeout=PATIENCE)
    assert recording.returncode == 0
    assert said.endswith(f" to {file}.\n")
    done = gpushare("replay", str(file))
    assert done.returncode == 0
    assert done.stdout.endswith(" are the same.\n")

    done = gpushare("replay", str(file), "--policy", "fcfs")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split() == ["DECISIONS", "RECORDED", "FCFS"]
    assert any(line.startswith("Grant ") for line in done.stdout.splitlines())
    done = gpushare("replay", str(file), "--policy", "best")
    assert (done.returncode, "policy must be one of" in done.stderr) == (2, True)

    # As if another release had made the recording.
    lines = file.read_text().splitlines()
    file.write_text("\n".join(json.dumps(tick(json.loads(line))) for line in lines))
    done = gpushare("replay", str(file))
    assert done.returncode == 1
    assert done.stdout.startswith("The first difference is at event ")


def tick(line: Any) -> Any:
    """Replace a request by a tick."""
    requests = isinstance(line, list) and line[1] == "Request"
    return [line[0], "Tick", {}, *line[3:]] if requests else line


def test_a_recording_ends_after_its_time(
    scheduler: Scheduler, gpushare: Command, tmp_path: Path
) -> None:
    file = tmp_path / "recording"
    done = gpushare("record", str(file), "--seconds", "0.2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f" to {file}.\n")
    assert gpushare("replay", str(file)).returncode == 0


# --- Mistakes: in this process, because there are many cases -------------------------------------

Here = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def idle_scheduler() -> Iterator[Path]:
    """Return the socket of a scheduler that no test changes."""
    with socket_folder() as folder:
        socket, name = Path(folder, "s", "s.sock"), Path(folder).name
        environ = {"GPUSHARE_SIM": "1", "GPUSHARE_SIM_NAME": name, "GPUSHARE_SOCKET": str(socket)}
        scheduler = Scheduler({**os.environ, **environ}, Path(folder, "log"))
        yield socket
        scheduler.close()
        Path(f"/dev/shm/gpushare-sim-{name}").unlink(missing_ok=True)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Return a function that runs a command in this process, and returns its exit status, output and errors."""

    def run(socket: Path, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("GPUSHARE_SOCKET", str(socket))
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
        return status, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["history"],
        ["set", "--quantum", "1"],
        ["release"],
        ["evict", "x"],
        ["freeze"],
        ["explain"],
        ["shares"],
        ["record", "x"],
        ["replay", "--last"],
    ],
)
def test_without_a_scheduler_one_line_explains_what_to_do(
    tmp_path: Path, here: Here, arguments: list[str]
) -> None:
    status, output, errors = here(tmp_path / "s.sock", *arguments)
    assert (status, output) == (2, "")
    (line,) = errors.splitlines()
    assert line.startswith("gpushare: no scheduler is running at ")
    assert "gpushare scheduler" in line


@pytest.mark.parametrize("arguments", [["status"], ["freeze", "x"]])
def test_a_command_of_another_version_names_both_versions(
    idle_scheduler: Path, here: Here, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    current = protocol.CONTROL_VERSION
    monkeypatch.setattr(protocol, "CONTROL_VERSION", current + 1)
    status, output, errors = here(idle_scheduler, *arguments)
    assert (status, output) == (2, "")
    assert errors == (
        f"gpushare: the program sends control requests of version {current + 1}, but the scheduler expects "
        f"version {current}; install the same version of jupyter-gpushare for both\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["release"], "no notebooks or programs are using the GPU"),
        (["release", "nobody"], "'nobody'"),
        (["set", "--quantum", "never"], "quantum"),
        (["set", "--quantum", "99999"], "quantum"),
        (
            ["set", "--anti-thrash", "of"],
            "did you mean 'off'?); choose from auto, on, off. See: gpushare set --help",
        ),
        (["set", "anti-thrash", "of"], "did you mean 'off'?"),
        (["status", "--colour"], "unknown option '--colour'. See: gpushare status --help"),
        (["status", "--jsn"], "did you mean '--json'?"),
        (["status", "now"], "unknown argument 'now'"),
        (["background"], "no notebooks or programs are using the GPU"),
        (["freeze", "nobody"], "'nobody'"),
        (["keep", "a", "maybe"], "invalid choice 'maybe'; use on or off"),
        (["keep"], "on|off"),
        (["limit", "a", "much"], "invalid limit 'much'"),
        (
            ["limit", "a", "150%"],
            "Use a percentage such as 25%, or off. See: gpushare limit --help",
        ),
        (["memory", "a", "50%"], "invalid size '50%'"),
        (["request", "a", "half"], "Use a percentage such as 25%, or off"),
        (["weight", "a", "0"], "invalid weight '0'"),
        (["set", "policy", "brust"], "did you mean 'burst'?); choose from burst"),
        (["set", "policy"], "no value for 'policy'; for example: gpushare set policy fcfs"),
        (
            ["set", "polices", "fcfs"],
            "did you mean 'policy'?); for example: gpushare set policy fcfs",
        ),
        (["set", "quantum", "never"], "quantum"),
        (["shares", "ada", "--limit", "50%"], "user:NAME or team:NAME"),
        (["shares", "--limit", "50%"], "specify user:NAME or team:NAME"),
        (["shares", "user:ada", "--memory", "much"], "20GiB"),
        (
            ["shares", "user:ada", "--gpus", "0.5"],
            "invalid number of GPUs '0.5'; use a positive number such as 2, or off",
        ),
        (["shares", "user:ada", "--member", "ben"], "members"),
        (["explain", "nobody"], "'nobody'"),
        (["record"], "gpushare record FILE"),
        (["record", "/proc/none/x"], "cannot write to /proc/none/x"),
        (["record", "x", "--seconds", "0"], "invalid time '0'"),
        (["record", "--stop"], "no recording is running"),
        (["replay"], "gpushare replay FILE"),
        (["simulate", "--generate", "students", "--policy", "brust"], "did you mean 'burst'?"),
        (["kernelspec", "ad", "x"], "did you mean 'add'?"),
        (["simulate", "--generate", "studens"], "did you mean 'students'?"),
        (["bench", "launhc"], "unknown benchmark 'launhc' (did you mean 'launch'?)"),
        (["replay", "/proc/none"], "cannot read /proc/none"),
        (["replay", "/proc/version"], "cannot be read"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    idle_scheduler: Path, here: Here, arguments: list[str], words: str
) -> None:
    status, output, errors = here(idle_scheduler, *arguments)
    assert (status, output) == (2, "")
    (line,) = errors.splitlines()
    assert line.startswith("gpushare: ")
    assert words in line


def test_a_second_scheduler_reports_the_first_in_one_line(
    scheduler: Scheduler, gpushare: Command
) -> None:
    done = gpushare("scheduler")
    assert (done.returncode, done.stdout) == (75, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpushare: another scheduler")


def test_the_scheduler_runs_as_a_subcommand(environ: dict[str, str], gpushare: Command) -> None:
    command = [sys.executable, "-m", "jupyter_gpushare.cli.main", "scheduler", "--quantum", "7"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        status = json.loads(gpushare("status", "--json").stdout)
        assert status["settings"]["quantum"] == 7.0
        running.terminate()
        assert running.wait(PATIENCE) == 0


def test_an_unknown_policy_is_refused(gpushare: Command) -> None:
    done = gpushare("scheduler", "--policy", "best")
    assert (done.returncode, done.stdout) == (2, "")
    assert "policy must be one of burst, fcfs" in done.stderr


def test_help_names_every_command(gpushare: Command) -> None:
    done = gpushare("--help")
    assert done.returncode == 0
    for command in ("status", "run", "release", "freeze", "history", "set", "scheduler", "explain"):
        assert command in done.stdout
    assert gpushare("--version").stdout.startswith("gpushare ")
    done = gpushare("statsu")
    assert done.returncode == 2
    assert done.stderr == (
        "gpushare: unknown command 'statsu' (did you mean 'status'?). See: gpushare --help\n"
    )
    done = gpushare("--verison")
    assert done.returncode == 2
    assert "did you mean '--version'?" in done.stderr
    assert docs_url() in gpushare().stdout


def test_help_points_to_pages_that_exist(root: Path, here: Here, tmp_path: Path) -> None:
    """Users who installed a wheel have no docs folder, so the addresses are those of the published pages."""
    assert f'Documentation = "{docs_url()}"' in (root / "pyproject.toml").read_text()
    for command in ("", *COMMANDS):
        _, output, _ = here(tmp_path / "s.sock", *([command] if command else []), "--help")
        words = output.split()
        assert not [word for word in words if ".md" in word]
        pages = [word for word in words if word.startswith(docs_url())]
        assert pages
        for page in pages:
            path, _, section = page.removeprefix(docs_url()).partition("#")
            assert (root / "docs" / (path.replace(".html", ".md") or "index.md")).is_file()
            # The page has a section for each command (docs/conf.py).
            assert section == (f"gpushare-{command}" if command else "")


def test_the_command_alone_prints_help(gpushare: Command) -> None:
    done = gpushare()
    assert (done.returncode, done.stdout) == (0, gpushare("--help").stdout)


def imported(*arguments: str) -> set[str]:
    """Return the modules that a command has imported at its end."""
    code = (
        "import contextlib, io, sys\n"
        "from jupyter_gpushare.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    main({[*arguments]})\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_commands_that_people_run_often_import_little() -> None:
    """Processor time is mostly imports; ``gpushare bench command-start`` measures it."""
    package = "jupyter_gpushare.cli."
    for arguments in ([], ["--help"], ["--version"]):
        found = imported(*arguments)
        assert {name for name in found if name.startswith(package)} == {f"{package}main"}
        assert not found & {"asyncio", "msgspec", "rich", "jupyter_gpushare.scheduler.protocol"}
    found = imported("status", "--help")
    own = {name.removeprefix(package) for name in found if name.startswith(package)}
    assert own == {"main", "show", "show.status", "terminal"}
    assert not found & {"asyncio", "rich.progress", "jupyter_gpushare.kernel_provisioner"}
