# SPDX-License-Identifier: BSD-3-Clause
"""``python -m jupyter_gpushare.scheduler``: the process of a scheduler, one user's or (``--config``) a node's."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import functools
import gc
import importlib
import logging
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .gpu.drivers import DriverError, find_driver, look_again
from .node.arguments import Parser, idleness, likelihood, quantum, seconds, size, switch
from .protocol.address import TAKEN, AddressError, prepare, socket_path
from .protocol.text import log_to_stderr
from .server import systemd
from .server.alive import ALIVE_SOCKET
from .server.locks import Locks, TakenError
from .server.shortage import Shortage, raise_limit

if TYPE_CHECKING:
    from .core.core import Core
    from .gpu.devices import Devices
    from .memory.disk.tier import DiskOptions
    from .node.config import NodeScheduler
    from .observability.recording import RecordedCore
    from .observability.rehearsal import Rehearsal
    from .server.server import Server
    from .server.stand_by import Inheritance
    from .server.throttle import Limits

log = logging.getLogger(__name__)

#: Exit status of a node's scheduler where there is no driver, yet (EX_UNAVAILABLE).
NO_DRIVER = 69
#: Seconds between two looks for a driver: doubled from the first to the last.
FIRST_LOOK, LAST_LOOK = 1.0, 30.0
#: The modules that are imported before a scheduler takes over, because that takes a quarter of a second.
SERVING = (
    ".gpu.checkpoint_helper",
    ".node.prices",
    ".observability.writer",
    ".server.requests",
    ".server.server",
    ".server.successor",
)
#: Exit status after a defect of the scheduler (EX_SOFTWARE). The clients go on and re-attach to the next scheduler.
BROKEN = 70


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the scheduler's options; ``gpushare scheduler`` has them, too."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="serve all users of this machine with the configuration in FILE; other options override FILE",
    )
    parser.add_argument(
        "--socket", type=Path, metavar="PATH", help="path of the socket (default: GPUSHARE_SOCKET)"
    )
    parser.add_argument(
        "--parent-pipe",
        action="store_true",
        help="stop when standard input ends (for parent processes)",
    )
    parser.add_argument(
        "--stand-by",
        action="store_true",
        help="if a scheduler is running already, take its place without a gap when it ends",
    )
    parser.add_argument(
        "--quantum",
        type=quantum,
        metavar="S",
        help="how long a notebook can keep running while others wait, in seconds, or auto (default: auto)",
    )
    parser.add_argument(
        "--anti-thrash",
        choices=["auto", "on", "off"],
        help="auto: take turns only if the data does not fit; on: always take turns; off: never take turns, if the "
        "driver can page the memory (default: auto)",
    )
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help="order of the queue: burst, fcfs, tgs, gemini, priority, or a policy of another package (default: burst)",
    )
    parser.add_argument(
        "--hibernate-after",
        type=idleness,
        metavar="S",
        help="how long a notebook or program is idle before it is hibernated, in seconds; off: never hibernate "
        "(default: 600)",
    )
    parser.add_argument(
        "--prefetch",
        type=switch,
        metavar="on|off",
        help="restore the memory of notebooks that will probably be used within a minute, if no other notebook needs "
        "the room (default: on)",
    )
    parser.add_argument(
        "--prefetch-likelihood",
        type=likelihood,
        metavar="F",
        help="get a notebook ready if GPU work within a minute is at least this likely, from 0 to 1 (default: 0.5)",
    )
    parser.add_argument(
        "--reservation-hold",
        type=seconds,
        metavar="S",
        help="keep the GPU for a notebook whose reservation is ready for this many seconds (default: 60)",
    )
    parser.add_argument(
        "--reserve",
        type=size,
        metavar="B",
        help="memory of each GPU that stays free, such as 512M (default: depends on the size of the GPU)",
    )
    parser.add_argument(
        "--host-memory",
        type=size,
        metavar="B",
        help="host memory available for evicted data, such as 64G (default: depends on the machine)",
    )
    parser.add_argument(
        "--disk-folder",
        type=Path,
        metavar="DIR",
        help="folder on a local disk to which the evicted data of idle notebooks goes (default: none, all of it stays "
        "in host memory)",
    )
    parser.add_argument(
        "--disk-size",
        type=size,
        metavar="B",
        help="space on that disk, such as 512G (default: half of what is free at the start)",
    )
    parser.add_argument(
        "--disk-after",
        type=idleness,
        metavar="S",
        help="how long a notebook is idle before its data goes to the disk, in seconds; off: only when host memory is "
        "needed (default: 1800)",
    )
    parser.add_argument(
        "--disk-encryption",
        type=switch,
        metavar="on|off",
        help="encrypt the data on the disk with a key that is only in memory (default: off)",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="record all input events to FILE, for gpushare replay; an existing FILE is renamed to FILE.1",
    )
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        help="lowest level of the messages that are logged to standard error (default: warning)",
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a scheduler's process: from options, a configuration and systemd."""

    path: Path
    #: The settings of the core (``Rules``).
    core: dict[str, Any]
    host_memory: int | None
    disk: DiskOptions | None
    record: Path | None
    parent_pipe: bool
    stand_by: bool
    #: The configuration file of a node's scheduler, and its content.
    config: Path | None
    node: NodeScheduler | None
    #: The socket, if systemd passed it.
    listener: socket.socket | None


def run(args: argparse.Namespace) -> int:
    """Serve until a signal or the end of the parent, and return the exit status."""
    node = None
    if args.config is not None:
        # Imported late, because only a node's scheduler needs it.
        from .node.config import ConfigError, load

        try:
            node = load(args.config.absolute())
        except ConfigError as error:
            return _complain(str(error), 2)
    level = args.log_level or (node.log_level if node else "warning")
    log_to_stderr(level.upper(), "gpushare scheduler: %(levelname)s: %(message)s")
    if args.parent_pipe and stat.S_ISREG(os.fstat(0).st_mode):
        return _complain("--parent-pipe needs a pipe as standard input, not a file", 2)
    try:
        driver = find_driver()
        if node is not None and driver is None:
            if not systemd.expects_messages():
                return _complain(
                    "no NVIDIA driver found; check with nvidia-smi whether it is loaded", NO_DRIVER
                )
            _await_driver()
            # The unit's list of devices is made at the start of the process.
            return _complain("found the NVIDIA driver; starting again to use it", NO_DRIVER)
        plan = _plan(args, node)
        locks = None
        if not plan.stand_by:
            # Most starts by a host end here, so nothing else is imported before.
            locks = _make_locks(plan, plan.listener is not None)
            locks.take()
            _check_socket(plan)
        return asyncio.run(_serve(plan, driver, locks))
    except (AddressError, DriverError, systemd.ActivationError) as error:
        return _complain(str(error), 2)
    except TakenError as error:
        return _complain(str(error), TAKEN)


def _await_driver() -> None:
    """Return once there is a driver: systemd would start one scheduler after the other instead, and log each start."""
    log.error(
        "no NVIDIA driver found; check with nvidia-smi whether it is loaded. The service waits for a driver"
    )
    # Nothing is to be reloaded yet.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    systemd.notify("READY=1", "STATUS=No NVIDIA driver found. Waiting for a driver.")
    period, pause = systemd.watchdog_period() or LAST_LOOK, FIRST_LOOK
    while find_driver() is None:
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            systemd.notify("WATCHDOG=1")
            time.sleep(min(left, period))
        pause = min(2 * pause, LAST_LOOK)
        look_again()


def _plan(args: argparse.Namespace, node: NodeScheduler | None) -> Plan:
    """Combine the options with the configuration. Options come first."""

    def chosen(name: str, otherwise: Any = None) -> Any:
        value = getattr(args, name)
        if value is None and node is not None:
            value = getattr(node, name)
        return otherwise if value in (None, "") else value

    listener = systemd.activated() if node is not None else None
    path = Path(chosen("socket")).absolute() if args.socket or node else socket_path()
    if listener is not None:
        passed = systemd.path_of(listener)
        stated = args.socket or (node and "socket" in node.config.NodeScheduler)
        if stated and passed != path:
            raise AddressError(
                f"systemd passes the socket {passed}, but {path} is configured; remove one of them"
            )
        path = passed
    core = {}
    for name in (
        *("quantum", "anti_thrash", "reserve", "policy", "hibernate_after"),
        *("prefetch", "prefetch_likelihood", "reservation_hold", "disk_after"),
    ):
        if chosen(name) is not None:
            core[name] = chosen(name)
    if node is not None:
        core["revoke_deadline"] = node.revoke_deadline
    record = chosen("record")
    return Plan(
        path=path,
        core=core,
        host_memory=chosen("host_memory"),
        disk=_disk(chosen),
        record=Path(record).absolute() if record else None,
        parent_pipe=args.parent_pipe,
        stand_by=args.stand_by,
        config=args.config.absolute() if args.config else None,
        node=node,
        listener=listener,
    )


def _disk(chosen: Callable[..., Any]) -> DiskOptions | None:
    """Return the settings of the disk; None: there is none."""
    from .memory.disk.tier import DiskOptions

    folder = chosen("disk_folder")
    if folder is None:
        return None
    return DiskOptions(
        Path(folder).absolute(), chosen("disk_size", None), chosen("disk_encryption", False)
    )


def _make_locks(plan: Plan, owned: bool) -> Locks:
    """Return the locks with which this is the only scheduler of its socket, and of its folder for what outlives it.

    Parameters
    ----------
    plan
        The settings.
    owned
        Whether systemd owns the socket, whose folder perhaps only systemd may write to.
    """
    paths = []
    if plan.node is not None:
        folder = Path(plan.node.state_dir)
        _make_state_dir(folder)
        paths.append(folder / "scheduler")
    if not owned:
        prepare(plan.path, plan.node.access() if plan.node is not None else None)
        paths.append(plan.path)
    return Locks(paths)


def _check_socket(plan: Plan) -> None:
    """Check that no other program listens on the socket of a node's scheduler, which holds the lock."""
    if plan.node is not None and plan.listener is None and _answers(plan.path):
        raise TakenError(
            f"another program listens on {plan.path}, perhaps systemd's socket unit; "
            "run: systemctl stop gpushare.socket"
        )


def _make_state_dir(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise AddressError(f"cannot create the folder {folder}: {error.strerror}") from error
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise AddressError(
            f"{folder} must belong to uid {os.getuid()} and be writable by no other user; "
            "set NodeScheduler.state_dir to such a folder"
        )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        attempt.setblocking(False)
        try:
            attempt.connect(str(path))
        except BlockingIOError:
            # So many are waiting for it.
            return True
        except OSError:
            return False
        return True


def _complain(text: str, status: int) -> int:
    print(f"gpushare: {text}", file=sys.stderr)
    return status


async def _serve(plan: Plan, driver: Any, locks: Locks | None) -> int:
    # Imported late: most starts by a host end at the lock.
    from .core.rules import Rules
    from .gpu.devices import Devices
    from .observability.recording import RecordedCore
    from .observability.rehearsal import Rehearsal
    from .policies import REGISTRY
    from .server import stand_by

    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(status: int) -> None:
        if not ended.done():
            ended.set_result(status)

    _end_on_failure(loop, end)
    if plan.parent_pipe:
        loop.add_reader(0, _watch_parent, loop, functools.partial(end, 0))
    try:
        core = RecordedCore(REGISTRY, Rules(**plan.core))
    except ValueError as error:
        return _complain(str(error), 2)
    devices, rehearsal = Devices(driver.nvml if driver is not None else None), Rehearsal()
    for name in SERVING:
        importlib.import_module(name, __package__)
    if locks is None:
        # This may take seconds, in which the running scheduler serves.
        devices.start()
    # All present objects live as long as the process, so the garbage collector need not visit them again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    if alive := os.environ.get(ALIVE_SOCKET):
        await stand_by.answer_probes(Path(alive))
    if locks is not None:
        left = stand_by.Inheritance(locks, plan.listener, plan.listener is not None)
    else:
        found = await stand_by.stand_by(plan.path, functools.partial(_make_locks, plan), ended)
        if found is None:
            return ended.result()
        left = found
        if left.listener is None:
            _check_socket(plan)
    server = _make_server(core, plan, driver, devices, left, rehearsal)
    return await _serve_alone(plan, core, server, left.locks, ended, end)


def _end_on_failure(loop: asyncio.AbstractEventLoop, end: Callable[[int], None]) -> None:
    """End at a signal, and at an error that may have left the core's state half changed."""
    # Each client needs descriptors for its connection and its pool. A Jupyter server may have a low limit.
    shortage = Shortage(raise_limit())

    def broken(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        fault = context.get("exception")
        if isinstance(fault, OSError) and fault.errno in (errno.EMFILE, errno.ENFILE):
            shortage.report(loop.time())
            return
        if fault is None or isinstance(fault, OSError):
            # Trouble with one connection.
            log.error("%s: %s", context.get("message"), fault)
            return
        # The next scheduler gets the whole state from the clients.
        log.critical("%s", context.get("message"), exc_info=fault)
        end(BROKEN)

    loop.set_exception_handler(broken)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, 0)


async def _serve_alone(
    plan: Plan,
    core: RecordedCore,
    server: Server,
    locks: Locks,
    ended: asyncio.Future[int],
    end: Callable[[int], None],
) -> int:
    """Serve as the only scheduler of the socket until this process must end."""
    from .observability.recording import RecordingError
    from .observability.writer import Writer
    from .server.requests import recording_ended
    from .server.successor import Successor

    loop = asyncio.get_running_loop()
    successor = Successor(plan.path, server.succession, end)
    if plan.record is not None:
        on_end = functools.partial(recording_ended, server)
        try:
            Writer(core, plan.record, again=True, on_end=on_end)
        except RecordingError as error:
            return _complain(str(error), 2)
    if plan.node is not None and plan.config is not None:
        for event in plan.node.entitlements().values():
            server.entitle(event)
        reloading = Reloading(plan.config, plan.node, server)
        loop.add_signal_handler(signal.SIGHUP, reloading.again)
        loop.add_signal_handler(signal.SIGUSR2, successor.start)
    await server.start()
    if plan.parent_pipe:
        loop.add_reader(
            0, _watch_parent, loop, functools.partial(server.succession.end_after_heir, end)
        )
    systemd.notify("READY=1")
    systemd.keep_alive(loop)
    with contextlib.suppress(OSError):
        print("ready", flush=True)

    def release() -> None:
        if successor.pid is not None:
            systemd.notify(f"MAINPID={successor.pid}")
        locks.release()

    try:
        return await ended
    finally:
        if successor.pid is None:
            systemd.notify("STOPPING=1")
        await server.stop(release, broken=ended.done() and ended.result() == BROKEN)
        if core.sink is not None:
            await core.sink.close()


def _make_server(
    core: Core,
    plan: Plan,
    driver: Any,
    devices: Devices,
    left: Inheritance,
    rehearsal: Rehearsal,
) -> Server:
    from .node.prices import Prices
    from .node.principals import Identity
    from .server.options import Options
    from .server.server import Server

    node = plan.node
    return Server(
        core,
        devices,
        Options(
            path=plan.path,
            simulated=driver is not None and driver.simulated,
            host_memory=plan.host_memory,
            disk=plan.disk,
            identity=node.identity() if node is not None else Identity(),
            access=node.access() if node is not None else None,
            listener=left.listener if left.owned else None,
            inherited=None if left.owned else left.listener,
            token=left.locks.token,
            limits=_limits(node),
            prices=Prices.parsed(node.prices if node is not None else {}),
            driver=driver,
            hibernator=node.hibernator() if node is not None else None,
            prepared_only=node is not None and node.prepare_host_memory,
        ),
        rehearsal,
    )


def _limits(node: NodeScheduler | None) -> Limits:
    """Return what one user may take of the scheduler."""
    from .server.throttle import PERSONAL, Limits

    if node is None:
        return PERSONAL
    return Limits(connections=node.connections, unidentified=node.unidentified)


class Reloading:
    """Reads the configuration of a node's scheduler again.

    Parameters
    ----------
    path
        The file.
    node
        Its content when it was last read.
    server
        The server to which changes apply.
    """

    def __init__(self, path: Path, node: NodeScheduler, server: Server) -> None:
        self._path = path
        self._node = node
        self._server = server

    def again(self) -> None:
        """Read the file. If it has a mistake, nothing changes."""
        from .node.config import ConfigError, changes, ignored_changes, load
        from .node.prices import Prices

        systemd.notify_reloading()
        try:
            news = load(self._path)
        except ConfigError as error:
            log.error("%s; the configuration was not changed", error)
        else:
            for event in changes(self._node, news):
                self._server.entitle(event)
            self._server.administration.prices = Prices.parsed(news.prices)
            log.warning("applied the shares and prices of %s", self._path)
            if names := ignored_changes(self._node, news):
                log.warning("%s will be applied at the next start", ", ".join(names))
            self._node = news
        systemd.notify("READY=1")


def _watch_parent(loop: asyncio.AbstractEventLoop, end: Any) -> None:
    try:
        data = os.read(0, 4096)
    except OSError:
        data = b""
    if not data:
        loop.remove_reader(0)
        end()


def main(argv: list[str] | None = None) -> int:
    """Run the scheduler and return the exit status."""
    parser = Parser(
        prog="gpushare scheduler", description="Share this machine's GPUs among processes."
    )
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
