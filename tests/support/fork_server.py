# SPDX-License-Identifier: BSD-3-Clause
"""Starts Python programs as forks of a process that has imported their modules already.

Starting Python and importing the scheduler takes a quarter of a second of processor time, and the tests start it
hundreds of times. ``popen`` returns a process as ``subprocess.Popen`` does: it has a process ID, standard streams, an
environment, arguments, a working directory and a limit of open files of its own, and runs the same program. It is the
child of a server. The server is the child of the tests' process, and reports to it how its own children end.

What a process takes from its environment before the first line of a program (``LD_PRELOAD``, ``PYTHONPATH``, ...) is
the server's. So there is one server for each combination of these, from the second start on: the first start with a
combination, which may be the only one, is an ordinary process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

#: The beginnings of the names of variables that are read before a program's first line.
EARLY = (
    "GLIBC_",
    "LANG",
    "LC_",
    "LD_",
    "LSAN_",
    "MALLOC_",
    "PYTHON",
    "TSAN_",
    "TZ",
    "UBSAN_",
    "ASAN_",
)
#: File descriptors from this number on are not used by the programs.
HIGH = 500
#: Bytes of a request.
LARGEST = 1 << 20


class Process(Protocol):
    """What ``subprocess.Popen`` and ``Forked`` have in common."""

    stdin: IO[Any] | None
    stdout: IO[Any] | None
    stderr: IO[Any] | None
    returncode: int | None

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


# --- The tests' side ------------------------------------------------------------------------------


class Forked:
    """A process that a server has forked. Like any child, it stays as a zombie until it is waited for.

    Parameters
    ----------
    pid
        Its process ID.
    parent
        Where the server is asked to wait for it.
    stdin, stdout
        The tests' ends of its pipes.
    """

    def __init__(
        self, pid: int, parent: socket.socket, stdin: IO[Any] | None, stdout: IO[Any] | None
    ) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.stderr: IO[Any] | None = None
        self.returncode: int | None = None
        self._parent = parent
        self._descriptor = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit status, or the negative number of a signal."""
        if self.returncode is None:
            ends = select.poll()
            ends.register(self._descriptor, select.POLLIN)
            if not ends.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            with self._parent:
                self._parent.send(b"wait")
                report = self._parent.recv(64)
            assert report, "the fork server has ended"
            self.returncode = int(report)
            os.close(self._descriptor)
        return self.returncode

    def poll(self) -> int | None:
        """Return its status if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, sig: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Server:
    """The process that forks.

    Parameters
    ----------
    environ
        Its environment.
    modules
        What it imports.
    """

    def __init__(self, environ: Mapping[str, str], modules: Sequence[str]) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                env=environ,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def fork(
        self, descriptors: Mapping[int, int], *, new_session: bool, **request: Any
    ) -> tuple[int, socket.socket]:
        """Have a process forked; return its ID, and where the server is asked to wait for it.

        Parameters
        ----------
        descriptors
            The process's descriptors, by the numbers that they have there.
        new_session
            Whether it leads a session of its own, which it does as soon as this method returns.
        **request
            What ``become`` is called with.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            data = json.dumps(
                {"numbers": list(descriptors), "new_session": new_session, "become": request}
            ).encode()
            socket.send_fds(self.control, [data], [theirs.fileno(), *descriptors.values()])
        pid = ours.recv(64)
        assert pid, "the fork server has ended"
        return int(pid), ours

    def close(self) -> None:
        self.control.close()
        self.process.wait()


@functools.cache
def _can_wait() -> bool:
    """Return whether this system lets a process wait for the end of a process that is not its child."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


_servers: dict[tuple[object, ...], Server | None] = {}


@atexit.register
def _close() -> None:
    for server in _servers.values():
        if server is not None:
            server.close()
    _servers.clear()


def _server(environ: Mapping[str, str], modules: Sequence[str]) -> Server | None:
    """Return the server for such processes, except at the first time."""
    early = {name: value for name, value in environ.items() if name.startswith(EARLY)}
    key = (*sorted(early.items()), *modules)
    if key not in _servers or not _can_wait():
        _servers[key] = None
        return None
    server = _servers[key]
    if server is None:
        others = {k: v for k, v in os.environ.items() if not k.startswith((*EARLY, "GPUSHARE_"))}
        server = _servers[key] = Server({**others, **early}, modules)
    return server


def popen(
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str] = os.environ,
    modules: Sequence[str] = (),
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    pass_fds: Sequence[int] = (),
    cwd: str | Path | None = None,
    text: bool = False,
    start_new_session: bool = False,
) -> Process:
    """Start ``python *arguments``.

    Parameters
    ----------
    arguments
        What comes behind ``python``: ``-m`` and a module, ``-c`` and code, or a file; then the program's own arguments.
    environ
        Its environment.
    modules
        What it is likely to import.
    stdin, stdout, stderr, pass_fds, cwd, text, start_new_session
        As for ``subprocess.Popen``. Pipes are buffered by lines where they are text.
    """
    server = _server(environ, modules)
    if server is None:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=environ,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            cwd=cwd,
            text=text,
            bufsize=1 if text else -1,
            start_new_session=start_new_session,
        )
    with contextlib.ExitStack() as stack:

        def theirs(stream: int | IO[Any] | None, number: int) -> tuple[int, IO[Any] | None]:
            """Return the process's descriptor, and our end of it."""
            if stream is None:
                return number, None
            if not isinstance(stream, int):
                return stream.fileno(), None
            if stream == subprocess.DEVNULL:
                return stack.enter_context(open(os.devnull, "r+b", 0)).fileno(), None
            if stream != subprocess.PIPE:
                return stream, None
            ends = os.pipe()
            mine, other = ends[::-1] if number == 0 else ends
            stack.callback(os.close, other)
            buffering = 1 if text else -1
            mode = ("w" if number == 0 else "r") + ("" if text else "b")
            return other, open(mine, mode, buffering)

        (fd0, pipe0), (fd1, pipe1), (fd2, _) = (
            theirs(stream, number) for number, stream in enumerate((stdin, stdout, stderr))
        )
        descriptors = {0: fd0, 1: fd1, 2: fd2, **{number: number for number in pass_fds}}
        pid, parent = server.fork(
            descriptors,
            new_session=start_new_session,
            arguments=list(arguments),
            environ=dict(environ),
            cwd=str(cwd or Path.cwd()),
            files=resource.getrlimit(resource.RLIMIT_NOFILE),
        )
    return Forked(pid, parent, pipe0, pipe1)


def run(
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str],
    timeout: float,
    modules: Sequence[str] = (),
    cwd: str | Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``python *arguments`` to its end, without input, and return what it wrote."""
    with contextlib.ExitStack() as stack:
        out, err = (
            stack.enter_context(open(os.memfd_create(name), "w+", encoding="utf-8"))
            for name in ("standard output", "standard error")
        )
        process = popen(
            arguments,
            environ=environ,
            modules=modules,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return subprocess.CompletedProcess([sys.executable, *arguments], status, *texts)


# --- The server's side ----------------------------------------------------------------------------


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork what is asked for. Return the request in each new process, and None at the end of the tests."""
    #: By their descriptors: the sockets of children that were not waited for.
    children: dict[int, tuple[socket.socket, int]] = {}
    requests = select.poll()
    requests.register(control, select.POLLIN)
    while True:
        for descriptor, _ in requests.poll():
            if descriptor in children:
                asked, pid = children.pop(descriptor)
                requests.unregister(descriptor)
                with asked:
                    # Without a request: the tests have lost it, and with them, all will end.
                    if asked.recv(64):
                        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                        asked.send(str(code).encode())
                continue
            data, passed, _, _ = socket.recv_fds(control, LARGEST, 16)
            if not data:
                return None
            request: dict[str, Any] = json.loads(data)
            asked = socket.socket(fileno=passed[0])
            pid = os.fork()
            if pid == 0:
                control.close()
                if request["new_session"]:
                    os.setsid()
                asked.send(str(os.getpid()).encode())
                for unused in (asked, *(other for other, _ in children.values())):
                    unused.close()
                adopt(dict(zip(request["numbers"], passed[1:], strict=True)))
                return request
            for descriptor in passed[1:]:
                os.close(descriptor)
            children[asked.fileno()] = asked, pid
            requests.register(asked, select.POLLIN)


def adopt(descriptors: Mapping[int, int]) -> None:
    """Have these descriptors under their numbers, which others of them may have."""
    high = {
        number: fcntl.fcntl(descriptor, fcntl.F_DUPFD, HIGH)
        for number, descriptor in descriptors.items()
    }
    for descriptor in descriptors.values():
        os.close(descriptor)
    for number, descriptor in high.items():
        os.dup2(descriptor, number)
        os.close(descriptor)


def become(
    arguments: Sequence[str], environ: Mapping[str, str], cwd: str, files: tuple[int, int]
) -> None:
    """Be ``python *arguments``, which may have so many open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    first, *rest = arguments
    if first == "-m":
        module, *rest = rest
        # It may have been imported; run as a program, it is another module.
        sys.modules.pop(module, None)
        sys.modules.pop(f"{module}.__main__", None)
        sys.path.insert(0, cwd)
        sys.argv[:] = [module, *rest]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif first == "-c":
        code, *rest = rest
        sys.path.insert(0, "")
        sys.argv[:] = ["-c", *rest]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), main.__dict__)
    else:
        sys.path.insert(0, str(Path(first).parent))
        sys.argv[:] = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def end(code: object) -> None:
    """End the process as ``exit`` of C does, unless something went wrong or daemon threads go on.

    Finalising the interpreter would change most of the pages that this process shares with the server. Copying them
    takes half of the processor time of a short program.

    Threads, exit handlers and the standard streams end as usual. Files that the program has left open are not flushed.
    ``exit`` may crash while a daemon thread runs C code, for example because it loads a library. So the interpreter is
    finalised then, which stops such threads.
    """
    status = 0 if code is None else code
    if isinstance(status, int):
        threading._shutdown()  # type: ignore[attr-defined]
        if threading.active_count() > 1:
            sys.exit(status)
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            # With the GIL: no other thread goes on.
            ctypes.PyDLL(None).exit(status)
    raise SystemExit(code)


def main() -> None:
    # The folder of this file has modules that a program could take for others.
    del sys.path[0]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    # As rarely as the tests' own process does.
    gc.set_threshold(50_000, 20, 100)
    # Whatever the first test allowed that started a process here: see HIGH.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    request = serve(socket.socket(fileno=int(descriptor)))
    if request is not None:
        code: object = None
        try:
            become(**request["become"])
        except SystemExit as ended:
            code = ended.code
        end(code)


if __name__ == "__main__":
    main()
