# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.kernel_provisioner import launch
from jupyter_gpushare.scheduler.gpu.drivers import Driver, Libraries
from jupyter_gpushare.scheduler.node.entitlements import parse_size

SHIMS = Libraries(
    Path("/s/libgpushare.so"), Path("/s/libgpushare-alias.so"), Path("/s/libgpushare-nvml.so")
)
DRIVER = Driver(Path("/d/libcuda.so.1"), Path("/d/libnvidia-ml.so.1"), simulated=False)


def environment(
    environ: dict[str, str], driver: Driver = DRIVER, **settings: object
) -> dict[str, str]:
    return launch.client_environment(
        environ,
        group="g",
        name="n",
        driver=driver,
        socket=Path("/s/sock"),
        settings=launch.Settings(**settings),  # type: ignore[arg-type]
        shims=SHIMS,
    )


def test_our_libraries_come_before_other_preloaded_ones() -> None:
    made = environment({"LD_PRELOAD": "/lib/tcmalloc.so /lib/other.so", "HOME": "/h"})
    assert made["LD_PRELOAD"] == (
        "/s/libgpushare.so:/s/libgpushare-alias.so:/s/libgpushare-nvml.so:/lib/tcmalloc.so:/lib/other.so"
    )
    assert made["HOME"] == "/h"
    assert made["GPUSHARE_DRIVER"] == "/d/libcuda.so.1"
    assert made["GPUSHARE_NVML"] == "/d/libnvidia-ml.so.1"
    assert made["GPUSHARE_SOCKET"] == "/s/sock"


def test_a_client_started_by_a_client_is_separate() -> None:
    outer = environment({"LD_PRELOAD": "/lib/tcmalloc.so"}, backend="plain", memory=5)
    inner = environment(outer)
    assert inner["LD_PRELOAD"] == outer["LD_PRELOAD"]
    assert "GPUSHARE_BACKEND" not in inner
    assert "GPUSHARE_MEMORY" not in inner
    plain = launch.plain_environment(outer)
    assert plain["LD_PRELOAD"] == "/lib/tcmalloc.so"
    assert (
        not {"GPUSHARE_GROUP", "GPUSHARE_NAME", "GPUSHARE_DRIVER", "GPUSHARE_NVML"} & plain.keys()
    )


def test_the_users_own_settings_stay() -> None:
    made = environment(
        {
            "GPUSHARE_BACKEND": "plain",
            "TF_FORCE_GPU_ALLOW_GROWTH": "false",
            "GPUSHARE_FORBID_MANAGED": "1",
        }
    )
    assert made["GPUSHARE_BACKEND"] == "plain"
    assert made["GPUSHARE_FORBID_MANAGED"] == "1"
    assert made["TF_FORCE_GPU_ALLOW_GROWTH"] == "false"
    assert made["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert environment({"GPUSHARE_BACKEND": "plain"}, backend="swap")["GPUSHARE_BACKEND"] == "swap"


def test_without_nvml_there_is_no_nvml_shim() -> None:
    made = environment(
        {"GPUSHARE_GROUP": "old", "GPUSHARE_NVML": "/old"},
        Driver(Path("/d/libcuda.so.1"), None, False),
    )
    assert made["LD_PRELOAD"] == "/s/libgpushare.so:/s/libgpushare-alias.so"
    assert "GPUSHARE_NVML" not in made


def test_the_simulated_compiler_is_preloaded(tmp_path: Path) -> None:
    sim = tmp_path / "sim"
    sim.mkdir()
    (sim / "libnvrtc.so.13").touch()
    made = environment({}, Driver(sim / "libcuda.so.1", None, simulated=True))
    assert made["LD_PRELOAD"].endswith(f":{sim}/libnvrtc.so.13")
    assert "LD_PRELOAD" not in launch.plain_environment(made)


@pytest.mark.parametrize("folder", ["/with space", "/with:colon"])
def test_a_folder_that_ld_preload_cannot_name_is_refused(folder: str) -> None:
    shims = Libraries(*(Path(folder, path.name) for path in SHIMS.preload()))
    with pytest.raises(launch.LaunchError, match="install jupyter-gpushare in another folder"):
        launch.client_environment(
            {}, group="g", name="n", driver=DRIVER, socket=Path("/s"), shims=shims
        )


@given(st.text())
def test_names_fit_the_protocol(name: str) -> None:
    made = launch.client_environment(
        {}, group=name, name=name, driver=DRIVER, socket=Path("/s"), shims=SHIMS
    )
    assert len(made["GPUSHARE_NAME"].encode()) <= launch.NAME_BYTES
    assert len(made["GPUSHARE_GROUP"].encode()) <= launch.GROUP_BYTES
    assert "\0" not in made["GPUSHARE_NAME"]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20GiB", 20 << 30),
        ("1.5g", 3 << 29),
        ("512 MB", 512 << 20),
        ("1073741824", 1 << 30),
        ("7b", 7),
        ("1 T", 1 << 40),
    ],
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "much", "-1G", "0", "1e3", "5 potatoes", "99999999T", "GiB", "1GiBB", "٣G"]
)
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 20GiB") as caught:
        parse_size(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        ["xpython", "-f", "c"],
        ["python", "-m", "bash_kernel", "-f", "c"],
        ["R", "--slave", "-e", "IRkernel::main()"],
        ["python", "-m", "ipykernel_launcher", "-f", "c", "-c", "import mine"],
        ["python", "-m", "ipykernel_launcher", "-f", "c", "--IPKernelApp.code_to_run=import mine"],
        [
            "python",
            "-m",
            "ipykernel_launcher",
            "-f",
            "c",
            "--InteractiveShellApp.file_to_run=mine.py",
        ],
    ],
)
def test_other_commands_are_left_unchanged(command: list[str]) -> None:
    assert launch.with_in_kernel_part(command) == command


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "c"],
        ["conda", "run", "-n", "e", "python", "-m", "ipykernel", "-f", "c"],
        ["/e/bin/python", "/e/lib/ipykernel_launcher.py", "-f", "c"],
    ],
)
def test_ipykernel_commands_load_the_part(command: list[str]) -> None:
    made = launch.with_in_kernel_part(command)
    assert made[:-1] == command
    option, _, code = made[-1].partition("=")
    assert option == "--IPKernelApp.code_to_run"
    assert "\n" not in code
    ast.parse(code, mode="eval")


@pytest.mark.parametrize(
    "path", sorted(launch.IN_KERNEL.parent.glob("*.py")), ids=lambda path: path.stem
)
def test_the_part_is_python_3_6(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 6))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.add(str(node.module).split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1
    assert imported <= {
        "ctypes", "difflib", "errno", "functools", "html", "importlib", "json", "logging", "math", "os", "re", "signal",
        "sys", "threading", "time", "typing", "unicodedata", "uuid",
        "IPython",
    }  # fmt: skip
