# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from jupyter_gpushare.kernel_provisioner.launch import LaunchError, client_environment
from jupyter_gpushare.scheduler.gpu.drivers import Driver
from jupyter_gpushare.scheduler.protocol.address import (
    MAX_PATH,
    Access,
    AddressError,
    bind,
    is_own_place,
    prepare,
    socket_path,
    too_long,
)
from jupyter_gpushare.scheduler.protocol.async_client import AsyncControlClient
from jupyter_gpushare.scheduler.protocol.client import ControlClient, SchedulerUnreachable
from jupyter_gpushare.scheduler.protocol.supervisor import SchedulerHost

root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_the_chosen_path_comes_first() -> None:
    environ = {"GPUSHARE_SOCKET": "/a/b.sock", "XDG_RUNTIME_DIR": "/run/user/1"}
    assert socket_path(environ) == Path("/a/b.sock")
    assert socket_path({"XDG_RUNTIME_DIR": "/run/user/1"}) == Path(
        "/run/user/1/gpushare/scheduler.sock"
    )
    assert socket_path({}) == Path(f"/tmp/gpushare-{os.getuid()}/scheduler.sock")


def test_the_folder_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "run" / "gpushare" / "scheduler.sock"
    prepare(path)
    assert mode(path.parent) == 0o700


def test_a_folder_of_ours_that_is_open_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "gpushare"
    folder.mkdir()
    folder.chmod(0o777)
    prepare(folder / "scheduler.sock")
    assert mode(folder) == 0o700


def test_a_folder_of_the_users_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.chmod(0o755)
    prepare(folder / "scheduler.sock")
    assert mode(folder) == 0o755


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(AddressError, match="other users can write"):
        prepare(folder / "scheduler.sock")
    # With the sticky bit, as /tmp has it, other users cannot replace our socket.
    folder.chmod(0o1777)
    prepare(folder / "scheduler.sock")


@root_only
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "gpushare"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    with pytest.raises(AddressError, match="another user"):
        prepare(folder / "scheduler.sock")


@root_only
def test_another_users_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    link = tmp_path / "gpushare"
    link.symlink_to("real")
    os.lchown(link, 65534, 65534)
    with pytest.raises(AddressError, match="symbolic link"):
        prepare(link / "scheduler.sock")


def test_a_file_in_place_of_the_folder_or_the_socket_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(AddressError, match="not a socket"):
        prepare(file)
    with pytest.raises(AddressError, match="folder"):
        prepare(file / "scheduler.sock")


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    long = tmp_path / ("x" * MAX_PATH)
    with pytest.raises(AddressError, match="GPUSHARE_SOCKET"):
        prepare(long)
    assert not long.exists()


async def test_all_programs_report_an_overlong_path_in_the_same_words(tmp_path: Path) -> None:
    long = tmp_path / ("x" * MAX_PATH)
    said = too_long(long)
    assert str(len(os.fsencode(long))) in said
    assert "the maximum is 107" in said
    assert not too_long("x" * MAX_PATH)
    with pytest.raises(AddressError, match="the maximum is 107"):
        prepare(long)
    with pytest.raises(SchedulerUnreachable) as blocking:
        ControlClient(long)
    with pytest.raises(SchedulerUnreachable) as waiting:
        await AsyncControlClient(long).connect()
    with pytest.raises(LaunchError) as launching:
        client_environment(
            {}, group="g", name="n", driver=Driver(Path("/d"), None, True), socket=long
        )
    assert {str(each.value) for each in (blocking, waiting, launching)} == {said}
    host = SchedulerHost(long, start=True)
    await host.start()
    try:
        with pytest.raises(SchedulerUnreachable) as hosting:
            await host.connected(0.5)
        # Nor is a scheduler started, which would end at once.
        assert (str(hosting.value), host._child) == (said, None)
    finally:
        await host.stop()


# --- A node's ---------------------------------------------------------------------------------------

EVERYBODY = Access(0o666)
GROUP = Access(0o660, os.getgid())


@pytest.mark.parametrize("access", [EVERYBODY, GROUP])
def test_the_folder_of_a_node_may_be_entered_by_other_users(tmp_path: Path, access: Access) -> None:
    path = tmp_path / "run" / "gpushare" / "scheduler.sock"
    before = os.umask(0o077)
    try:
        prepare(path, access)
    finally:
        os.umask(before)
    assert mode(path.parent) == 0o755
    with bind(path, access):
        assert mode(path) == access.mode
        assert path.stat().st_gid == os.getgid()


def test_a_folder_of_ours_that_was_private_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "gpushare"
    folder.mkdir(mode=0o700)
    prepare(folder / "scheduler.sock", EVERYBODY)
    assert mode(folder) == 0o755


@pytest.mark.parametrize("bits", [0o777, 0o1777, 0o775])
def test_a_folder_in_which_others_could_make_a_nodes_socket_is_refused(
    tmp_path: Path, bits: int
) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(bits)
    with pytest.raises(AddressError, match="chmod go-w"):
        prepare(folder / "scheduler.sock", EVERYBODY)


@pytest.mark.parametrize(
    ("bits", "access", "passes"),
    [
        (0o700, EVERYBODY, False),
        (0o750, EVERYBODY, False),
        (0o751, EVERYBODY, True),
        (0o710, GROUP, True),
        (0o710, Access(0o660, os.getgid() + 1), False),
        (0o711, Access(0o660, os.getgid() + 1), True),
    ],
)
def test_an_existing_folder_must_let_the_users_of_a_node_in(
    tmp_path: Path, bits: int, access: Access, passes: bool
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    os.chown(folder, -1, os.getgid())
    folder.chmod(bits)
    if passes:
        prepare(folder / "scheduler.sock", access)
    else:
        with pytest.raises(AddressError, match="chmod a"):
            prepare(folder / "scheduler.sock", access)
    assert mode(folder) == bits


def test_the_socket_of_a_node_is_not_a_users_own(tmp_path: Path) -> None:
    path = tmp_path / "gpushare" / "scheduler.sock"
    assert is_own_place(path), "it can be made"
    prepare(path, EVERYBODY)
    assert is_own_place(path)
    bind(path, EVERYBODY).close()
    assert not is_own_place(path)
    with pytest.raises(AddressError, match="a system service starts"):
        prepare(path)
    assert mode(path.parent) == 0o755
    # One's own may be left over, too.
    path.unlink()
    bind(path).close()
    assert mode(path) == 0o600
    assert is_own_place(path)


def test_a_folder_that_cannot_be_created_is_not_ones_own(tmp_path: Path) -> None:
    if os.getuid() != 0:
        assert not is_own_place(Path("/usr/gpushare/scheduler.sock"))
    file = tmp_path / "file"
    file.touch()
    assert not is_own_place(file / "gpushare" / "scheduler.sock")


def test_a_socket_that_cannot_be_created_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="cannot create the socket"):
        bind(tmp_path / "missing" / "scheduler.sock")
