# SPDX-License-Identifier: BSD-3-Clause
"""``python -m jupyter_gpushare.scheduler``: the scheduler's process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import functools
import gc
import logging
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .address import AddressError, prepare, socket_path
from .arguments import Parser, quantum, size
from .drivers import DriverError, find_driver

log = logging.getLogger(__name__)

#: Exit status where another scheduler serves the socket already (EX_TEMPFAIL).
TAKEN = 75
#: Exit status after a fault of ours (EX_SOFTWARE). The clients go on and re-attach to the next one.
BROKEN = 70


class TakenError(Exception):
    """Another scheduler serves the socket."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the scheduler's options; ``gpushare scheduler`` has the same."""
    parser.add_argument(
        "--socket", type=Path, metavar="PATH", help="the socket (default: GPUSHARE_SOCKET's)"
    )
    parser.add_argument(
        "--parent-pipe", action="store_true", help="end when standard input ends (for a parent)"
    )
    parser.add_argument(
        "--quantum",
        type=quantum,
        default="auto",
        metavar="S",
        help="seconds that a holder may keep others waiting, or auto (default: auto)",
    )
    parser.add_argument(
        "--anti-thrash",
        choices=["auto", "on", "off"],
        default="auto",
        help="auto: serialise only what does not fit; on: one at a time; off: never where the "
        "memory can be paged (default: auto)",
    )
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help="who comes first: burst, fcfs, tgs, gemini, priority, or one that another package registered "
        "(default: burst)",
    )
    parser.add_argument(
        "--reserve",
        type=size,
        metavar="B",
        help="bytes of each GPU that stay free (default: by the GPU's size)",
    )
    parser.add_argument(
        "--host-memory",
        type=size,
        metavar="B",
        help="bytes of host memory that swapped data may take (default: what the machine has)",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write all that it takes in to FILE, for gpushare replay; one that is there becomes FILE.1",
    )
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="warning",
        help="what goes to standard error (default: warning)",
    )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that makes this the only scheduler of a socket.

    Raises
    ------
    TakenError
        If another process holds it.
    """
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise AddressError(f"cannot open the lock {lock}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise TakenError(f"another scheduler (pid {owner}) serves {path}") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def run(args: argparse.Namespace) -> int:
    """Serve until told to end, and return the exit status."""
    logging.basicConfig(
        level=args.log_level.upper(), format="gpushare scheduler: %(levelname)s: %(message)s"
    )
    path = args.socket.absolute() if args.socket else socket_path()
    if args.parent_pipe and stat.S_ISREG(os.fstat(0).st_mode):
        return _complain("--parent-pipe needs a pipe as standard input, not a file", 2)
    try:
        driver = find_driver()
        prepare(path)
        with locked(path):
            return asyncio.run(_serve(args, path, driver))
    except (AddressError, DriverError) as error:
        return _complain(str(error), 2)
    except TakenError as error:
        return _complain(str(error), TAKEN)


def _complain(text: str, status: int) -> int:
    print(f"gpushare: {text}", file=sys.stderr)
    return status


async def _serve(args: argparse.Namespace, path: Path, driver: Any) -> int:
    # Imported late: most starts by a host end at the lock.
    from .devices import Devices
    from .recording import RecordedCore, RecordingError
    from .requests import recording_ended
    from .server import Options, Server
    from .writer import Writer

    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(status: int) -> None:
        if not ended.done():
            ended.set_result(status)

    def broken(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        fault = context.get("exception")
        if fault is None or isinstance(fault, OSError):
            # Trouble with one connection, or too many of them.
            log.error("%s: %s", context.get("message"), fault)
            return
        # The core's state may be half changed. The next scheduler learns all from the clients.
        log.critical("%s", context.get("message"), exc_info=fault)
        end(BROKEN)

    loop.set_exception_handler(broken)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, 0)
    if args.parent_pipe:
        loop.add_reader(0, _watch_parent, loop, end)
    settings: dict[str, Any] = {"quantum": args.quantum, "anti_thrash": args.anti_thrash}
    if args.reserve is not None:
        settings["reserve"] = args.reserve
    if args.policy is not None:
        settings["policy"] = args.policy
    simulated = driver is not None and driver.simulated
    try:
        core = RecordedCore(**settings)
    except ValueError as error:
        return _complain(str(error), 2)
    server = Server(
        core,
        Devices(driver.nvml if driver is not None else None),
        Options(path=path, simulated=simulated, host_memory=args.host_memory),
    )
    if args.record is not None:
        tell = functools.partial(recording_ended, server)
        try:
            Writer(core, args.record.absolute(), again=True, on_end=tell)
        except RecordingError as error:
            return _complain(str(error), 2)
    await server.start()
    # What exists now lives for ever: the collector need not look at it again, nor often at all.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    with contextlib.suppress(OSError):
        print("ready", flush=True)
    try:
        return await ended
    finally:
        await server.stop()
        if core.sink is not None:
            await core.sink.close()


def _watch_parent(loop: asyncio.AbstractEventLoop, end: Any) -> None:
    try:
        data = os.read(0, 4096)
    except OSError:
        data = b""
    if not data:
        loop.remove_reader(0)
        end(0)


def main(argv: list[str] | None = None) -> int:
    """Run the scheduler and return the exit status."""
    parser = Parser(
        prog="gpushare scheduler", description="Share this machine's GPUs among processes."
    )
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
