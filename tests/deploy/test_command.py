# SPDX-License-Identifier: BSD-3-Clause
"""What the command refuses, and that nothing else needs what it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare.cli.main import main
from jupyter_gpushare.deploy.libraries import LibrariesError, install_libraries
from jupyter_gpushare.scheduler.gpu.drivers import DriverError, libraries
from tests.deploy.conftest import Plugin


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--slots-per-gpu", "0"], "invalid number '0'; use a whole number from 1 to 1000"),
        (["--slots-per-gpu", "many"], "invalid number 'many'; use a whole number"),
        (["--resource", "gpu"], "invalid resource name 'gpu'"),
        (["--resource", "Example.org/gpu"], "invalid resource name"),
        (["--resource", "x.kubernetes.io/gpu"], "invalid resource name"),
        (["--resource", "example.org/g/pu"], "invalid resource name"),
        (["--resource", f"example.org/{'g' * 64}"], "invalid resource name"),
        (["--socket", "s.sock"], "invalid path 's.sock'; use an absolute path"),
        (["--library-dir", "lib"], "invalid path 'lib'; use an absolute path"),
        (["--interval", "0"], "use a positive number of seconds"),
        (["--several", "both"], "invalid choice 'both'"),
        (["--expose", "both"], "invalid choice 'both'"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["device-plugin", *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--places-per-gpu", "1000"], "use a whole number from 1 to 999"),
        (["--node-name", "Node_1"], "invalid name 'Node_1'; use the name of the node"),
        (["--memory-overcommit", "0.5"], "invalid multiple '0.5'; use a number from 1 to 100"),
        (["--memory-overcommit", "much"], "invalid multiple 'much'"),
        (["--host-memory", "much"], "invalid size 'much'"),
        (["--state-dir", "claims"], "invalid path 'claims'; use an absolute path"),
        (["--expose", "both"], "invalid choice 'both'"),
        ([], "the name of the node is missing; specify it with --node-name"),
        (["--node-name", "n", "--socket", "/run/s.sock"], "everything in /run; put the scheduler"),
        (["--node-name", "n", "--kubelet-dir", "/no/such"], "/no/such is not a folder"),
        (["--node-name", "n", "--kubelet-dir", "LONG"], "are longer than 107 bytes; shorten"),
    ],
)
def test_options_of_the_dra_driver_that_make_no_sense_are_refused(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = tmp_path / ("long" * 25)
    long.mkdir()
    given = [str(long) if argument == "LONG" else argument for argument in arguments]
    try:
        status = main(["dra-driver", *given])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    assert complaint in capsys.readouterr().err


def test_a_node_that_does_not_fit_the_dra_driver_is_refused(
    drivers: Callable[..., Plugin], tmp_path: Path
) -> None:
    folder = tmp_path / "file"
    folder.write_text("")
    for arguments, changes, complaint in (
        ([], {"GPUSHARE_SIM_DEVICES": "none"}, "NVML shows no GPU on this node"),
        ([], {"KUBECONFIG": str(tmp_path / "none")}, "there is no access to the Kubernetes API"),
        (["--state-dir", str(folder)], {}, f"cannot use {folder}/claims: Not a directory"),
    ):
        driver = drivers(*arguments, **changes)
        driver.process.wait(60)
        assert complaint in driver.log
        assert "Traceback" not in driver.log
        assert driver.close() == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--socket", "/run/s.sock"],
            "containers would get access to everything in /run; put the scheduler's",
        ),
        (["--kubelet-dir", "/no/such"], "/no/such is not a folder; specify the kubelet's"),
        (["--kubelet-dir", "LONG"], "is longer than 107 bytes"),
        (["--library-dir", "/proc/none"], "cannot copy the libraries to /proc/none: "),
        ([], "NVML shows no GPU on this node"),
    ],
)
def test_a_node_that_does_not_fit_is_refused(
    arguments: list[str], complaint: str, tmp_path: Path, environ: dict[str, str], plugins: object
) -> None:
    long = tmp_path / ("long" * 25)
    long.mkdir()
    given = [str(long) if argument == "LONG" else argument for argument in arguments]
    broken = {} if arguments else {"GPUSHARE_SIM_DEVICES": "none"}
    plugin = plugins(*given, **broken)  # type: ignore[operator]
    plugin.process.wait(60)
    assert complaint in plugin.log
    assert "Traceback" not in plugin.log
    assert plugin.close() == 2


@pytest.mark.parametrize("command", ["device-plugin", "dra-driver"])
def test_without_the_extra_only_this_command_is_missing(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [*sys.modules]:
        ours = (".kubernetes.plugin", ".kubernetes.rpc", ".dra.driver", "_pb2")
        if name.split(".")[0] == "grpc" or name.endswith(ours):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert main([command]) == 2
    assert "run: pip install 'jupyter-gpushare[kubernetes]'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0


def test_libraries_are_replaced_whole_and_only_if_they_differ(tmp_path: Path) -> None:
    install_libraries(tmp_path / "lib")
    library = tmp_path / "lib" / "libgpushare.so"
    first = library.stat()
    assert first.st_mode & 0o777 == 0o755
    install_libraries(tmp_path / "lib")
    assert library.stat().st_ino == first.st_ino
    with library.open("r+b") as loaded:
        loaded.write(b"old")
        loaded.flush()
        install_libraries(tmp_path / "lib")
        loaded.seek(0)
        assert loaded.read(3) == b"old"
    assert library.read_bytes() == libraries().cuda.read_bytes()
    assert len([*library.parent.iterdir()]) == 4
    with pytest.raises(LibrariesError, match="choose another folder"):
        install_libraries(library)


def test_a_machine_without_kubernetes_installs_the_libraries_by_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["libraries", str(tmp_path / "lib")]) == 0
    found = libraries()
    assert {path.name for path in (tmp_path / "lib").iterdir()} == {
        path.name for path in (*found.preload(), found.hibernator)
    }
    assert main(["libraries", str(tmp_path / "lib" / "libgpushare.so")]) == 2
    assert "choose another folder" in capsys.readouterr().err


def test_kernels_use_the_libraries_that_match_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_libraries(tmp_path)
    monkeypatch.setenv("GPUSHARE_LIBRARIES", str(tmp_path))
    assert {path.parent for path in libraries().preload()} == {tmp_path}
    (tmp_path / "libgpushare-nvml.so").unlink()
    with pytest.raises(DriverError, match="GPUSHARE_LIBRARIES names"):
        libraries()
