# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jupyter_client
import pytest
from jupyter_client.connect import LocalPortCache
from jupyter_client.ioloop import AsyncIOLoopKernelManager
from jupyter_client.manager import AsyncKernelManager, KernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets.config import Config
from traitlets.traitlets import TraitError

from jupyter_gpushare import LIBRARIES
from jupyter_gpushare.kernel_provisioner import GpuShareProvisioner, heartbeat, provisioner
from jupyter_gpushare.kernel_provisioner.heartbeat import FirstBeat
from tests.support.folders import socket_folder

from .conftest import Kernel, Launched, eventually, launched, started

Ask = Callable[..., dict[str, Any]]

#: What a process has that is under the interposer.
SHIMS = [str(LIBRARIES / f"libgpushare{part}.so") for part in ("", "-alias", "-nvml")]


def is_shared(kernel: Launched) -> bool:
    environment = kernel.environment()
    shared = "GPUSHARE_GROUP" in environment or "libgpushare" in environment.get("LD_PRELOAD", "")
    assert not (shared and unshared(kernel))
    return shared


def unshared(kernel: Launched) -> tuple[str, dict[str, Any]] | None:
    assert isinstance(kernel.manager.provisioner, GpuShareProvisioner)
    return kernel.manager.provisioner.unshared


#: Both transports, once with encryption and once without. The other two find what these and
#: ``test_a_kernel_that_dies_later_is_restarted_with_sharing``, which has all four, find.
one_of_each = pytest.mark.parametrize(
    "connection",
    [
        "tcp",
        "ipc encrypted",
        pytest.param("tcp encrypted", marks=pytest.mark.slow),
        pytest.param("ipc", marks=pytest.mark.slow),
    ],
    indirect=True,
)


@pytest.fixture(params=["tcp", "tcp encrypted", "ipc", "ipc encrypted"])
def connection(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """Configure how a manager and its kernel are connected."""
    transport, _, encrypted = request.param.partition(" ")
    policy = {}
    if KernelManager.class_traits().get("transport_encryption"):
        policy = {"transport_encryption": "required" if encrypted else "disabled"}
    elif encrypted:
        pytest.skip("this jupyter_client does not encrypt")
    with socket_folder() as folder:
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", folder)
        yield Config({"KernelManager": {"transport": transport, **policy}})


@pytest.mark.usefixtures("real_kernels")
async def test_a_kernel_is_a_client(connection: Config) -> None:
    environment = {**os.environ, "JPY_SESSION_NAME": "/notebooks/train.ipynb", "LD_PRELOAD": ""}
    manager = AsyncKernelManager(kernel_name="python3", config=connection)
    async with started(manager=manager, env=environment) as kernel:
        found = kernel.environment()
        assert found["LD_PRELOAD"].split(":")[:3] == SHIMS
        assert found["GPUSHARE_GROUP"] == kernel.manager.kernel_id
        assert found["GPUSHARE_NAME"] == "train.ipynb"
        assert found["GPUSHARE_SOCKET"] == os.environ["GPUSHARE_SOCKET"]
        assert found["GPUSHARE_DRIVER"] == str(LIBRARIES / "sim" / "libcuda.so.1")
        assert "GPUSHARE_BACKEND" not in found
        maps = Path(f"/proc/{kernel.pid}/maps").read_text()
        assert all(shim in maps for shim in SHIMS)


@pytest.mark.usefixtures("real_kernels")
async def test_a_kernel_without_notebook_is_named_after_its_kernelspec() -> None:
    async with launched() as kernel:
        assert kernel.manager.kernel_id is not None
        assert kernel.environment()["GPUSHARE_NAME"] == f"python3 {kernel.manager.kernel_id[:8]}"


async def test_nothing_is_left_in_the_users_namespace() -> None:
    async with started() as kernel:
        found = await kernel.execute("%who\nprint(sorted(sys_name for sys_name in Out), In[:-1])")
        assert found.stream("stdout").splitlines() == ["Interactive namespace is empty.", "[] ['']"]
        assert found.reply["execution_count"] == 1
        assert found.stream("stderr") == ""


async def test_the_users_own_start_up_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = Path(os.environ["IPYTHONDIR"]) / "profile_default"
    (profile / "startup").mkdir(parents=True)
    (profile / "startup" / "10.py").write_text("from_file = 1\n")
    (profile / "ipython_kernel_config.py").write_text(
        "c.InteractiveShellApp.exec_lines = ['from_line = 2']\nc.InteractiveShellApp.extensions = ['autoreload']\n"
    )
    (tmp_path / "startup.py").write_text("from_pythonstartup = 3\n")
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "startup.py"))
    async with started() as kernel:
        found = await kernel.execute(
            "print(from_file, from_line, from_pythonstartup)\n%who\n%autoreload"
        )
        assert found.stream("stdout").splitlines() == ["1 2 3", "Interactive namespace is empty."]
        assert found.reply["status"] == "ok"
        assert (
            (await kernel.execute("%gpushare nonsense"))
            .stream("stderr")
            .startswith("UsageError: gpushare: ")
        )


@pytest.mark.usefixtures("real_kernels")
async def test_a_kernelspec_opts_out(add_kernelspec: Callable[..., str]) -> None:
    async with launched(add_kernelspec("out", metadata={"gpushare": {"enabled": False}})) as kernel:
        assert not is_shared(kernel)
        assert unshared(kernel) == ("opted_out", {})
        assert len(kernel.command()) == 5


@pytest.mark.usefixtures("real_kernels")
async def test_the_environment_opts_out() -> None:
    async with launched(env={**os.environ, "GPUSHARE_DISABLE": "1"}) as kernel:
        assert unshared(kernel) == ("opted_out", {})


@pytest.mark.usefixtures("real_kernels")
async def test_a_kernelspec_opts_in(add_kernelspec: Callable[..., str]) -> None:
    manager = AsyncKernelManager(
        kernel_name=add_kernelspec("in", metadata={"gpushare": {"enabled": True}}),
        config=Config({"GpuShareProvisioner": {"enabled": False}}),
    )
    async with launched(manager=manager) as kernel:
        assert is_shared(kernel)


@pytest.mark.usefixtures("real_kernels")
async def test_the_users_provisioner_wins(
    add_kernelspec: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = add_kernelspec(
        "named", metadata={"kernel_provisioner": {"provisioner_name": "local-provisioner"}}
    )
    async with launched(named) as kernel:
        assert type(kernel.manager.provisioner) is LocalProvisioner
        assert "GPUSHARE_GROUP" not in kernel.environment()


@pytest.mark.usefixtures("real_kernels")
async def test_settings_reach_the_kernel(add_kernelspec: Callable[..., str]) -> None:
    settings = Config({"GpuShareProvisioner": {"backend": "plain", "memory": "1GiB"}})
    async with launched(
        manager=AsyncKernelManager(kernel_name="python3", config=settings)
    ) as kernel:
        found = kernel.environment()
        assert (found["GPUSHARE_BACKEND"], found["GPUSHARE_MEMORY"]) == ("plain", str(1 << 30))
    own = add_kernelspec("own", metadata={"gpushare": {"backend": "swap", "memory": "2GiB"}})
    async with launched(manager=AsyncKernelManager(kernel_name=own, config=settings)) as kernel:
        found = kernel.environment()
        assert found["GPUSHARE_BACKEND"] == "swap"
        # The scheduler has it, which can change it.
        assert "GPUSHARE_MEMORY" not in found
        assert "GPUSHARE_OVERSUBSCRIBE" not in found
    settings = Config({"GpuShareProvisioner": {"oversubscribe": True}})
    for metadata, expected in (({}, "1"), ({"oversubscribe": False}, "0")):
        name = add_kernelspec(f"over{expected}", metadata={"gpushare": metadata})
        async with launched(
            manager=AsyncKernelManager(kernel_name=name, config=settings)
        ) as kernel:
            assert kernel.environment()["GPUSHARE_OVERSUBSCRIBE"] == expected


@pytest.mark.usefixtures("real_kernels")
async def test_a_kernel_goes_to_the_scheduler_of_its_server(tmp_path: Path) -> None:
    elsewhere = tmp_path / "s.sock"
    settings = Config({"GpuShare": {"socket": str(elsewhere)}})
    manager = AsyncKernelManager(kernel_name="python3", config=settings)
    async with launched(manager=manager) as kernel:
        assert kernel.environment()["GPUSHARE_SOCKET"] == str(elsewhere)


async def test_entitlements_apply_before_the_kernel_has_a_process(
    scheduler: Ask, add_kernelspec: Callable[..., str]
) -> None:
    stated = {
        **{"request": 0.25, "limit": 0.5, "memory": "20GiB", "weight": 2},
        **{"priority": "background", "keep": True, "colour": "red"},
    }
    name = add_kernelspec("shares", metadata={"gpushare": stated})
    async with started(name) as kernel:

        def preferences(**changes: Any) -> dict[str, Any]:
            """Change something, and return all that is asked for the kernel."""
            reply = scheduler("adjust", group=kernel.manager.kernel_id, later=True, **changes)
            found: dict[str, Any] = reply["preferences"]
            return found

        found = preferences(frozen=False)
        del stated["colour"]
        assert found.items() >= {**stated, "memory": 20 << 30}.items()
        # What people asked for since then is kept by a restart.
        found = preferences(limit=0.75, priority="interactive", keep=False)
        await kernel.manager.restart_kernel(now=True)
        await kernel.client.wait_for_ready(timeout=60)
        assert preferences(frozen=False) == found


async def test_entitlements_wait_for_a_scheduler(
    add_kernelspec: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    name = add_kernelspec("shares", metadata={"gpushare": {"limit": 0.5}})
    async with started(name) as kernel:
        own = kernel.manager.provisioner
        assert isinstance(own, GpuShareProvisioner)
        await own.state_shares()
        scheduler = request.getfixturevalue("scheduler")

        def limit(**changes: Any) -> float:
            reply = scheduler("adjust", group=kernel.manager.kernel_id, later=True, **changes)
            return float(reply["preferences"]["limit"])

        assert limit(keep=True) == 0
        await own.state_shares()
        assert limit(keep=True) == 0.5
        # Once.
        assert limit(limit=0.25) == 0.25
        await own.state_shares()
        assert limit(keep=True) == 0.25


@pytest.mark.usefixtures("real_kernels")
@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"backend": "fast"}, "use auto, swap, managed or plain"),
        ({"memory": True, "backend": "swap"}, 'use a number with a unit, such as "20GiB"'),
        ({"request": "half", "backend": "swap"}, "request must be"),
        ({"limit": 1.5, "backend": "swap"}, "limit must be"),
        ({"weight": 0, "backend": "swap"}, "weight must be"),
        ({"keep": 1, "backend": "swap"}, "keep must be true or false"),
        ({"priority": "high", "backend": "swap"}, "priority must be"),
        ({"memory": "lots", "backend": "swap"}, "use a number with a unit, such as 20GiB"),
        ({"enabled": "yes"}, "must be true or false"),
        ({"oversubscribe": "yes", "backend": "swap"}, "must be true or false"),
        ({"gpu": 3}, "use enabled, backend, oversubscribe, request, limit, memory, weight"),
        ("off", "must be an object"),
    ],
)
async def test_bad_metadata_is_named_and_left_out(
    metadata: Any,
    complaint: str,
    add_kernelspec: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with launched(add_kernelspec("bad", metadata={"gpushare": metadata})) as kernel:
        assert is_shared(kernel)
        # What was said rightly beside it still holds.
        good = isinstance(metadata, dict) and metadata.get("backend") == "swap"
        assert ("GPUSHARE_BACKEND" in kernel.environment()) == good
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    ours = [message for message in said if message.startswith("gpushare: ")]
    assert len(ours) == 1
    assert complaint in ours[0]
    assert "kernelspec bad" in ours[0]
    assert "\n" not in ours[0]


def test_a_bad_setting_is_refused() -> None:
    with pytest.raises(TraitError, match="20GiB"):
        GpuShareProvisioner(memory="much")
    with pytest.raises(TraitError, match="backend"):
        GpuShareProvisioner(backend="fast")


@one_of_each
@pytest.mark.usefixtures("real_kernels")
async def test_a_restarted_kernel_stays_in_its_group(connection: Config) -> None:
    manager = AsyncKernelManager(kernel_name="python3", config=connection)
    async with started(manager=manager) as kernel:
        first, pid = kernel.environment()["GPUSHARE_GROUP"], kernel.pid
        await kernel.manager.restart_kernel(now=True)
        await kernel.client.wait_for_ready(timeout=60)
        assert kernel.pid != pid
        assert kernel.environment()["GPUSHARE_GROUP"] == first
        # It was told to end: nothing was wrong with the interposer.
        assert is_shared(kernel)


@pytest.mark.usefixtures("real_kernels")
async def test_a_kernel_whose_port_is_taken_shares_on_other_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = [other.getsockname()[1]]
        choose = LocalPortCache.find_available_port
        monkeypatch.setattr(
            LocalPortCache,
            "find_available_port",
            lambda cache, ip: taken.pop() if taken else choose(cache, ip),
        )
        async with started() as kernel:
            assert not taken
            assert other.getsockname()[1] not in kernel.manager.ports
            assert is_shared(kernel)
            assert (await kernel.execute("1 + 1")).data()["text/plain"] == "2"


async def test_without_driver_there_is_no_preload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provisioner, "find_driver", lambda environ: None)
    async with started() as kernel:
        assert not is_shared(kernel)
        assert unshared(kernel) is None, "there is nothing to share"
        assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in kernel.environment()
        said = (await kernel.execute("%gpushare")).stream("stderr")
        assert "no CUDA driver was found" in said
        assert said.count("\n") == 1


@pytest.mark.usefixtures("real_kernels")
@pytest.mark.parametrize(
    "broken", ["client_environment", "find_driver", "socket_path", "with_in_kernel_part"]
)
async def test_an_internal_error_does_not_end_the_kernel(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(provisioner, broken, fail)
    async with started() as kernel:
        assert not is_shared(kernel)
        code, params = unshared(kernel) or ("", {})
        assert code == "started_without_interposer"
        assert "a fault of ours" in params["error"]
        assert (await kernel.execute("1 + 1")).data()["text/plain"] == "2"
    assert any("starts without GPU sharing" in record.getMessage() for record in caplog.records)


def poisoned(folder: Path) -> str:
    """Make interposer libraries that take every process down that loads them."""
    (folder / "libs").mkdir()
    source = folder / "abort.c"
    source.write_text(
        "#include <stdlib.h>\n__attribute__((constructor)) static void fail(void) { abort(); }\n"
    )
    library = folder / "libs" / "libgpushare.so"
    subprocess.run(
        [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, source], check=True
    )
    for part in ("-alias", "-nvml"):
        shutil.copy(LIBRARIES / f"libgpushare{part}.so", folder / "libs")
    return str(folder / "libs")


@one_of_each
@pytest.mark.usefixtures("real_kernels")
async def test_a_kernel_that_dies_at_once_is_restarted_without_sharing(
    scheduler: Ask, tmp_path: Path, caplog: pytest.LogCaptureFixture, connection: Config
) -> None:
    connection.GpuShareProvisioner.library_dir = poisoned(tmp_path)
    connection.KernelRestarter.time_to_dead = 0.2
    manager = AsyncIOLoopKernelManager(kernel_name="python3", config=connection)
    async with started(manager=manager) as kernel:
        assert not is_shared(kernel)
        said = (await kernel.execute("%gpushare status")).stream("stderr")
        assert "this kernel runs without the interposer: the kernel exited" in said
        assert (await kernel.execute("1 + 1")).data()["text/plain"] == "2"
        notices = scheduler("status")["status"]["notices"]
        assert [(notice["group"], notice["code"]) for notice in notices] == [
            (manager.kernel_id, "started_without_interposer")
        ]
        # Nor is it tried again when the user restarts it.
        await manager.restart_kernel(now=True)
        await kernel.client.wait_for_ready(timeout=60)
        assert not is_shared(kernel)
        code, params = unshared(kernel) or ("", {})
        assert code == "started_without_interposer"
        assert params["status"] != 0
    assert any("before its first heartbeat" in record.getMessage() for record in caplog.records)


@pytest.mark.usefixtures("real_kernels")
async def test_a_kernel_that_dies_later_is_restarted_with_sharing(connection: Config) -> None:
    connection.KernelRestarter.time_to_dead = 0.2
    manager = AsyncIOLoopKernelManager(kernel_name="python3", config=connection)
    async with started(manager=manager) as kernel:
        pid = kernel.pid
        watch = kernel.manager.provisioner._first_beat  # type: ignore[union-attr]
        await eventually(lambda: watch.seen, "the first heartbeat")
        kernel.client.execute("import os; os._exit(7)")
        await eventually(lambda: kernel.pid != pid, "the restart")
        await kernel.client.wait_for_ready(timeout=60)
        assert is_shared(kernel)


@pytest.mark.parametrize("trouble", ["has no heartbeat", "cannot be watched"])
async def test_a_kernel_without_observable_heartbeat_is_not_blamed(
    trouble: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection = {"transport": "ipc", "ip": "nowhere", "hb_port": 1}
    if trouble == "has no heartbeat":
        monkeypatch.setattr(heartbeat, "PATIENCE", 0.2)
    else:
        connection["curve_publickey"] = "not a key"
    watch = FirstBeat(connection)
    try:
        await eventually(lambda: watch.seen, "the end of the watch")
    finally:
        watch.stop()
    warned = any("cannot watch" in record.getMessage() for record in caplog.records)
    assert warned == (trouble == "cannot be watched")


@pytest.mark.usefixtures("real_kernels")
async def test_a_kernel_of_another_environment_loads_the_interposer(
    tmp_path: Path, add_kernelspec: Callable[..., str]
) -> None:
    # ipykernel and what it needs, without this package.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    ours = Path(jupyter_client.__file__).parent.parent
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = tmp_path / "venv" / "lib" / version / "site-packages"
    for entry in ours.iterdir():
        if "gpushare" not in entry.name and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    argv = [
        str(tmp_path / "venv/bin/python"),
        "-m",
        "ipykernel_launcher",
        "-f",
        "{connection_file}",
    ]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    async with started(
        add_kernelspec("foreign", argv=argv), env=environment, cwd=str(tmp_path)
    ) as kernel:
        code = """\
            import sys
            try:
                import jupyter_gpushare
            except ModuleNotFoundError:
                print(sys.prefix)
        """
        found = await kernel.execute(textwrap.dedent(code))
        assert found.stream("stdout").strip() == str(tmp_path / "venv")
        said = (await kernel.execute("%gpushare status")).stream("stderr")
        assert "no scheduler is running at" in said
        assert str(LIBRARIES / "libgpushare.so") in Path(f"/proc/{kernel.pid}/maps").read_text()


@pytest.mark.usefixtures("real_kernels")
async def test_a_kernel_of_another_language_shares(
    tmp_path: Path, add_kernelspec: Callable[..., str]
) -> None:
    script = tmp_path / "fake_kernel.py"
    script.write_text(
        textwrap.dedent(
            """\
            import sys
            from ipykernel.kernelapp import IPKernelApp
            from ipykernel.kernelbase import Kernel

            assert len(sys.argv) == 3, sys.argv

            class Fake(Kernel):
                implementation = language = "fake"
                implementation_version = language_version = banner = "1"
                language_info = {"name": "fake", "mimetype": "text/plain", "file_extension": ".fake"}

                async def do_execute(self, code, silent, *args, **kwargs):
                    return {"status": "ok", "execution_count": 1, "payload": [], "user_expressions": {}}

            IPKernelApp.launch_instance(kernel_class=Fake)
            """
        )
    )
    argv = [sys.executable, str(script), "-f", "{connection_file}"]
    async with started(add_kernelspec("fake", argv=argv, language="fake")) as kernel:
        assert is_shared(kernel)
        assert (await kernel.execute("anything")).reply["status"] == "ok"


@pytest.mark.usefixtures("real_kernels")
async def test_a_kernel_that_never_uses_cuda_pays_nothing(
    scheduler: Ask, add_kernelspec: Callable[..., str]
) -> None:
    def threads(kernel: Kernel) -> int:
        return len(os.listdir(f"/proc/{kernel.pid}/task"))

    def sockets(kernel: Kernel) -> int:
        found = 0
        for entry in Path(f"/proc/{kernel.pid}/fd").iterdir():
            # IPython opens and closes files all the time.
            with contextlib.suppress(FileNotFoundError):
                found += os.readlink(entry).startswith("socket:")
        return found

    plain = add_kernelspec("plain", metadata={"gpushare": {"enabled": False}})
    async with started(plain) as bare, started() as shared:
        for kernel in (bare, shared):
            await kernel.execute("1 + 1")
        assert (threads(shared), sockets(shared)) == (threads(bare), sockets(bare))
        assert scheduler("status")["status"]["groups"] == []


async def test_an_interrupt_takes_bounded_time_when_the_scheduler_is_stuck(
    connection: Config,
) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        # It takes connections and never answers.
        server.bind(os.environ["GPUSHARE_SOCKET"])
        server.listen()
        manager = AsyncKernelManager(kernel_name="python3", config=connection)
        async with started(manager=manager) as kernel:
            said = asyncio.Event()
            cell = asyncio.create_task(
                kernel.execute("print(1, flush=True)\nimport time; time.sleep(50)", said)
            )
            await asyncio.wait_for(said.wait(), 60)
            await asyncio.wait_for(kernel.manager.interrupt_kernel(), 4)
            assert (await cell).reply["ename"] == "KeyboardInterrupt"
