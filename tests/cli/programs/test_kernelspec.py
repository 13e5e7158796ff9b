# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning import KernelProvisionerFactory

from jupyter_gpushare.cli.main import main
from tests.support.folders import socket_folder

CELL = """
import ctypes, os
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
preloaded = os.environ["LD_PRELOAD"].count("libgpushare.so")
print(ctypes.CDLL(None).gpushare_attached(None), os.environ["GPUSHARE_NAME"], preloaded)
%gpushare status
"""


@pytest.fixture(autouse=True)
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    with socket_folder() as folder:
        monkeypatch.setenv("GPUSHARE_SIM", "1")
        monkeypatch.setenv("GPUSHARE_SIM_NAME", Path(folder).name)
        monkeypatch.setenv("GPUSHARE_SOCKET", f"{folder}/s")
        monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
        yield tmp_path / "data"


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    path = tmp_path / "notebook.ipynb"
    cells = [nbformat.v4.new_code_cell(CELL)]
    metadata = {"kernelspec": {"name": "shared", "display_name": "shared", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    return path


def check(path: Path, name: str) -> None:
    outputs = nbformat.read(path, as_version=4).cells[0].outputs
    assert outputs[0].text == f"1 {name} 1\n"
    assert "Simulated GPU" in outputs[1].data["text/html"]


def test_nbconvert_shares(notebook: Path) -> None:
    assert main(["kernelspec", "add", "shared"]) == 0
    subprocess.run(
        [
            sys.executable,
            "-m",
            "jupyter",
            "nbconvert",
            "--to",
            "notebook",
            "--execute",
            "--inplace",
            str(notebook),
        ],
        check=True,
        timeout=90,
        capture_output=True,
    )
    check(notebook, notebook.name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_papermill_shares(notebook: Path, tmp_path: Path) -> None:
    # Not at the top: each worker of pytest would import it, which takes 0.4 s.
    import papermill

    assert main(["kernelspec", "add", "shared"]) == 0
    papermill.execute_notebook(str(notebook), str(tmp_path / "out.ipynb"), progress_bar=False)
    # papermill's command would say which notebook it is; its function does not.
    check(tmp_path / "out.ipynb", "shared")


def test_the_kernel_gets_the_interposer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["kernelspec", "add", "shared"]) == 0
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "gpushare")
    KernelProvisionerFactory.clear_instance()
    manager = KernelManager(kernel_name="shared")
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        pid = manager.provisioner.pid  # type: ignore[union-attr]
        environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
        preload = next(entry for entry in environment if entry.startswith("LD_PRELOAD="))
        assert preload.count("libgpushare.so") == 1
        assert "GPUSHARE_NAME=shared" in environment
        command = Path(f"/proc/{pid}/cmdline").read_text()
        assert command.count("code_to_run") == 1
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        KernelProvisionerFactory.clear_instance()


def test_add_list_remove(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernelspec", "list"]) == 0
    assert capsys.readouterr().err.startswith("No kernelspecs; create one with: ")
    arguments = [
        "kernelspec",
        "add",
        "Mine",
        "--display-name",
        "Mine!",
        "--memory",
        "2GiB",
        "--backend",
        "plain",
    ]
    assert main(arguments) == 0
    spec = json.loads((data / "kernels" / "mine" / "kernel.json").read_text())
    assert spec["display_name"] == "Mine!"
    assert spec["metadata"]["gpushare"] == {"enabled": False, "wraps": "python3"}
    start = spec["argv"].index("run")
    assert spec["argv"][start + 1 : start + 7] == [
        "--default-name",
        "Mine",
        "--memory",
        str(2 << 30),
        "--backend",
        "plain",
    ]
    assert "{connection_file}" in spec["argv"]
    assert Path(spec["argv"][spec["argv"].index("--") + 1]).is_absolute()
    source = Path(KernelSpecManager().get_kernel_spec("python3").resource_dir)
    assert {p.name for p in source.iterdir()} == {
        p.name for p in (data / "kernels" / "mine").iterdir()
    }
    # Created again, with other options.
    assert main(["kernelspec", "add", "mine"]) == 0
    assert (
        "--memory"
        not in json.loads((data / "kernels" / "mine" / "kernel.json").read_text())["argv"]
    )
    capsys.readouterr()
    assert main(["kernelspec", "list"]) == 0
    assert capsys.readouterr().out.startswith("mine\tfrom python3\t")
    assert main(["kernelspec", "remove", "mine"]) == 0
    assert not (data / "kernels" / "mine").exists()
    assert main(["kernelspec", "add", "there", "--prefix", str(tmp_path / "prefix")]) == 0
    assert (tmp_path / "prefix/share/jupyter/kernels/there/kernel.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["add", "a/b"], "use letters"),
        (["remove", "shard"], "did you mean 'shared'?"),
        (["add", "mine", "--from", "nothing"], "unknown kernelspec 'nothing'; choose from "),
        (["add", "again", "--from", "shared"], "use --from python3 instead"),
        (["add", "foreign"], "choose another name"),
        (["remove", "python3"], "was not created by gpushare"),
        (["remove", "nothing"], "was not created by gpushare"),
    ],
)
def test_bad_input(
    arguments: list[str], complaint: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kernelspec", "add", "shared"]) == 0
    foreign = data / "kernels" / "foreign"
    foreign.mkdir()
    (foreign / "kernel.json").write_text(
        json.dumps({"argv": ["x"], "display_name": "x", "language": "x"})
    )
    capsys.readouterr()
    assert main(["kernelspec", *arguments]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
