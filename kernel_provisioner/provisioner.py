# SPDX-License-Identifier: BSD-3-Clause
"""Starts kernels under the interposer, on their own machine and in their own environment."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Bool, Enum, Float, TraitError, Unicode, validate

from ..scheduler.gpu.drivers import DriverError, Libraries, find_driver
from ..scheduler.node.entitlements import parse_share, parse_size
from ..scheduler.protocol.address import is_own_place, socket_path
from . import ticket
from .heartbeat import FirstBeat
from .launch import (
    BACKENDS,
    SHARES,
    Backend,
    LaunchError,
    Settings,
    client_environment,
    parse_backend,
    plain_environment,
    with_in_kernel_part,
)

#: How long a scheduler that does not respond can delay an interrupt or a notice, in seconds.
CONTROL_TIMEOUT = 0.2
#: The same for a kernel's start and end, where a ticket is requested or returned, for which the scheduler asks the Hub.
TICKET_TIMEOUT = 1.0
#: Seconds between attempts to get one: doubled from the first to the last.
FIRST_PAUSE, LAST_PAUSE = 0.2, 5.0


class GpuShareProvisioner(LocalProvisioner):
    """Starts a kernel as the local provisioner does, and as a client of the GPU's scheduler.

    A kernelspec has the last word on its kernels, in ``metadata.gpushare``: ``enabled`` (true or false), ``backend``,
    ``oversubscribe`` (true or false), and its shares: ``request``, ``limit``, ``memory``, ``weight``, ``priority``
    and ``keep``, which people may change while it runs. Whatever goes wrong on our side, the kernel starts all the
    same, without sharing.
    """

    enabled = Bool(
        True,
        help="Whether kernels share the GPU, unless their kernelspec sets it (default: yes).",
    ).tag(config=True)

    backend = Enum(
        BACKENDS,
        None,
        allow_none=True,
        help="Memory backend of the kernels (default: $GPUSHARE_BACKEND, otherwise auto).",
    ).tag(config=True)

    memory = Unicode(
        "",
        help="Maximum device memory of one kernel over all GPUs (default: $GPUSHARE_MEMORY, otherwise no limit).",
    ).tag(config=True)

    oversubscribe = Bool(
        None,
        allow_none=True,
        help="Whether one kernel may allocate more than the GPU has, as managed memory. Data that does not fit is "
        "used in host memory, which is slower (default: $GPUSHARE_OVERSUBSCRIBE, otherwise no).",
    ).tag(config=True)

    in_kernel_part = Bool(
        True,
        help="Whether IPython kernels load the part that releases the GPU at the end of a cell, provides %gpushare, "
        "and turns a cancelled wait into KeyboardInterrupt (default: yes).",
    ).tag(config=True)

    library_dir = Unicode(
        "",
        help="Folder with the interposer's libraries (default: the installed ones).",
    ).tag(config=True)

    interrupt_timeout = Float(
        CONTROL_TIMEOUT,
        help="Maximum time that an interrupt waits for the scheduler's response, in seconds (default: 0.2).",
    ).tag(config=True)

    @validate("memory")
    def _valid_memory(self, proposal: dict[str, Any]) -> str:
        value = cast(str, proposal["value"])
        if value:
            try:
                parse_size(value)
            except ValueError as error:
                raise TraitError(f"GpuShareProvisioner.memory: {error}") from error
        return value

    #: Whether the present process was started under the interposer, and if not, why: a code and its parameters
    #: (docs/contributing/lab-protocol.md, ``unshared``). Neither where there is no driver.
    _shared = False
    _unshared: tuple[str, dict[str, Any]] | None = None
    #: Whether the present process was requested to end (or to interrupt what may be its start).
    _told_to_end = False
    #: Set when a process under the interposer ended by itself before its first heartbeat: never again for this kernel.
    _failed_with: int | None = None
    #: The shares in the kernelspec that no scheduler has received yet; None: the kernelspec has not been read yet.
    _untold: dict[str, Any] | None = None
    _environment: Mapping[str, str] = {}
    _first_beat: FirstBeat | None = None
    #: Where the kernel's ticket lies, if the scheduler asks for one; None where there is none to be had.
    _ticket: Path | None = None
    #: Gets it.
    _getting: asyncio.Task[None] | None = None

    @property
    def unshared(self) -> tuple[str, dict[str, Any]] | None:
        """Why the present process uses the GPU without taking turns: a code and its parameters, or None."""
        return self._unshared

    async def state_shares(self) -> None:
        """Tell the scheduler the shares that the kernelspec states, once: what people say later wins."""
        if not self._shared or not self._untold:
            return
        stated, self._untold = self._untold, {}
        try:
            from ..scheduler.protocol.client import ControlError, SchedulerUnreachable

            try:
                request = self._request("adjust", {**stated, "later": True})
                await asyncio.wait_for(request, CONTROL_TIMEOUT)
            except SchedulerUnreachable:
                raise
            except ControlError as error:
                self._bad("gpushare", stated, str(error))
        except Exception as error:
            # The server tries again once there is a scheduler.
            self._untold = stated
            self.log.debug(
                "gpushare: cannot set the shares of kernel %s: %r", self.kernel_id, error
            )

    async def renew_ticket(self) -> None:
        """Get a new ticket for the kernel, if it has one: the scheduler does not know the present one."""
        if self._shared and self._ticket is not None:
            await self._get_ticket(self._ticket)

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Put the kernel's command and environment under the interposer."""
        self._note_end()
        kwargs = await super().pre_launch(**kwargs)
        self._shared, self._unshared = False, None
        environ = dict(os.environ if kwargs.get("env") is None else kwargs["env"])
        kwargs["env"] = plain_environment(environ)
        try:
            await self._prepare(kwargs, environ)
        except (DriverError, LaunchError) as error:
            self._unshared = "started_without_interposer", {"error": str(error)}
            self.log.warning(
                "gpushare: kernel %s starts without GPU sharing: %s", self.kernel_id, error
            )
        except Exception as error:
            self._unshared = "started_without_interposer", {"error": repr(error)}
            self.log.warning(
                "gpushare: kernel %s starts without GPU sharing", self.kernel_id, exc_info=True
            )
        self._told_to_end = False
        return kwargs

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the process, and watch for its first heartbeat."""
        info = await super().launch_kernel(cmd, **kwargs)
        if self._shared:
            self._watch_start()
        return info

    async def poll(self) -> int | None:
        """Ask whether the process has ended (None: it has not)."""
        self._note_end()
        return await super().poll()

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel; an interrupt also ends its waits for the GPU, on any thread."""
        self._note_end()
        if signum != 0:
            self._told_to_end = True
        # The signal comes first: Python has then noted it when a cancelled wait on the main thread returns.
        await super().send_signal(signum)
        if signum == signal.SIGINT and self._shared:
            await self._control(self.interrupt_timeout, "cancel")

    async def kill(self, restart: bool = False) -> None:
        """End the process at once."""
        self._note_end()
        self._told_to_end = True
        await super().kill(restart)

    async def terminate(self, restart: bool = False) -> None:
        """Ask the process to end."""
        self._note_end()
        self._told_to_end = True
        await super().terminate(restart)

    async def shutdown_requested(self, restart: bool = False) -> None:
        """Note that the kernel was asked to shut down."""
        self._note_end()
        self._told_to_end = True
        await super().shutdown_requested(restart)

    async def cleanup(self, restart: bool = False) -> None:
        """Forget the process; after a restart, the kernel is in the same lease group again."""
        if self._first_beat is not None:
            self._first_beat.stop()
        if not restart and (self._shared or self._ticket is not None):
            await self._disown()
        await super().cleanup(restart)

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Say what another server needs to go on with this kernel."""
        info = cast("dict[str, Any]", await super().get_provisioner_info())
        if self._shared:
            info["gpushare"] = {"socket": str(socket_path(self._environment))}
            if self._ticket is not None:
                info["gpushare"]["ticket"] = str(self._ticket)
        return info

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Go on with a kernel of another server's."""
        await super().load_provisioner_info(provisioner_info)
        if shared := provisioner_info.get("gpushare"):
            self._shared = True
            self._environment = {"GPUSHARE_SOCKET": shared["socket"]}
            if "ticket" in shared:
                self._ticket = Path(shared["ticket"])
                ticket.held.add(self.kernel_id)

    # -- preparing -----------------------------------------------------------------------------------------------------

    async def _prepare(self, launch: dict[str, Any], environ: Mapping[str, str]) -> None:
        """Change the launch's ``env`` and ``cmd``, both or neither."""
        enabled, settings, shares = self._settings()
        if self._untold is None:
            self._untold = shares
        if not enabled:
            self._unshared = "opted_out", {}
            return
        command = with_in_kernel_part(launch["cmd"]) if self.in_kernel_part else launch["cmd"]
        if self._failed_with is not None:
            self._unshared = "started_without_interposer", {"status": self._failed_with}
            await self._tell_unshared(environ)
            why = "the kernel exited when it was started with the interposer"
            launch["env"]["GPUSHARE_ABSENT"] = why
            launch["cmd"] = command
            return
        driver = find_driver(environ)
        if driver is None:
            self.log.debug(
                "gpushare: no CUDA driver found; kernel %s starts without GPU sharing",
                self.kernel_id,
            )
            launch["cmd"] = command
            return
        socket = self._socket(environ)
        self._environment = {"GPUSHARE_SOCKET": str(socket)}
        if self._ticket is None:
            path = ticket.ticket_path(self.kernel_id)
            if ticket.may_be_needed():
                self._ticket = path
            if self._ticket is not None or not is_own_place(socket):
                # Before the kernel starts, since its command line shows its id to everybody.
                await self._get_ticket(path)
        launch["env"] = self._environment = client_environment(
            environ,
            group=self.kernel_id,
            name=self._name(environ),
            driver=driver,
            socket=socket,
            settings=settings,
            shims=self._libraries(),
            ticket=self._ticket,
        )
        launch["cmd"] = command
        self._shared = True
        if "memory" in shares:
            # It can be changed while the kernel runs; what the environment says cannot.
            launch["env"].pop("GPUSHARE_MEMORY", None)
        await self.state_shares()
        if environ.get("GPUSHARE_DISABLE") == "1":
            # The interposer steps aside.
            self._unshared = "opted_out", {}

    def _socket(self, environ: Mapping[str, str]) -> Path:
        """Return the scheduler's socket: the server's own, ``GpuShare.socket``, else what the environment says."""
        chosen = self.config.get("GpuShare", {}).get("socket")
        if isinstance(chosen, str) and chosen:
            return Path(chosen).expanduser().absolute()
        return socket_path(environ)

    def _settings(self) -> tuple[bool, Settings, dict[str, Any]]:
        """What the configuration and the kernelspec's metadata say; what they say wrongly is left out."""
        enabled = self.enabled
        backend = cast("Backend | None", self.backend)
        memory = parse_size(self.memory) if self.memory else None
        oversubscribe = self.oversubscribe
        shares: dict[str, Any] = {}
        stated = (self.kernel_spec.metadata or {}).get("gpushare", {})
        if not isinstance(stated, dict):
            self._bad("gpushare", stated, 'must be an object such as {"enabled": false}')
            stated = {}
        for key, value in stated.items():
            try:
                if key == "enabled":
                    if not isinstance(value, bool):
                        raise ValueError("must be true or false")
                    enabled = value
                elif key == "backend":
                    backend = parse_backend(value if isinstance(value, str) else str(value))
                elif key in SHARES:
                    shares[key] = parse_share(key, value)
                elif key == "oversubscribe":
                    if not isinstance(value, bool):
                        raise ValueError("must be true or false")
                    oversubscribe = value
                else:
                    raise ValueError(
                        f"unknown setting; use enabled, backend, oversubscribe, {', '.join(SHARES)}"
                    )
            except ValueError as error:
                self._bad(f"gpushare.{key}", value, str(error))
        return enabled, Settings(backend, memory, oversubscribe), shares

    def _bad(self, key: str, value: object, why: str) -> None:
        self.log.warning(
            "gpushare: kernelspec %s: metadata.%s = %r is ignored: %s",
            self._spec_name(),
            key,
            value,
            why,
        )

    def _libraries(self) -> Libraries | None:
        if not self.library_dir:
            return None
        folder = Path(self.library_dir).expanduser().absolute()
        found = Libraries(
            folder / "libgpushare.so",
            folder / "libgpushare-alias.so",
            folder / "libgpushare-nvml.so",
        )
        for path in found.preload():
            if not path.is_file():
                raise DriverError(f"GpuShareProvisioner.library_dir: {path} is missing")
        return found

    def _name(self, environ: Mapping[str, str]) -> str:
        """What people call the kernel: its notebook's path as the file browser shows it, else what the kernel is."""
        notebook = environ.get("JPY_SESSION_NAME", "")
        if not notebook:
            return f"{self._spec_name()} {self.kernel_id[:8]}"
        root = getattr(getattr(self.parent, "parent", None), "root_dir", "")
        if root and Path(notebook).is_relative_to(root):
            return str(Path(notebook).relative_to(root))
        return Path(notebook).name

    def _spec_name(self) -> str:
        return str(
            getattr(self.parent, "kernel_name", "") or self.kernel_spec.display_name or "kernel"
        )

    # -- starting ------------------------------------------------------------------------------------------------------

    def _watch_start(self) -> None:
        if self._first_beat is not None:
            self._first_beat.stop()
        try:
            self._first_beat = FirstBeat(self.connection_info)
        except Exception:
            # Without the watch, a kernel that dies early is started again as it was.
            self._first_beat = None
            self.log.debug(
                "gpushare: cannot watch the heartbeat of kernel %s", self.kernel_id, exc_info=True
            )

    def _note_end(self) -> None:
        """Note a process that ended by itself before it was there: the interposer may be why."""
        if (
            not self._shared
            or self._told_to_end
            or self.process is None
            or self._first_beat is None
        ):
            return
        status = self.process.poll()
        if status is None or self._first_beat.seen:
            return
        self._told_to_end = True
        if self._has_lost_a_port():
            self.log.warning(
                "gpushare: another program uses a port of kernel %s, which gets other ports if it is restarted",
                self.kernel_id,
            )
            # Otherwise, the local provisioner keeps them.
            self.ports_cached = False
            cast(Any, self.parent).cleanup_connection_file()
        else:
            self._failed_with = status

    def _has_lost_a_port(self) -> bool:
        """Whether another program uses a port of the kernel: jupyter_client chooses free ones, and reserves none."""
        manager = cast(Any, self.parent)
        if manager.transport != "tcp":
            return False
        family = socket.AF_INET6 if ":" in manager.ip else socket.AF_INET
        for port in manager.ports:
            try:
                socket.create_server((manager.ip, port), family=family).close()
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
        return False

    async def _tell_unshared(self, environ: Mapping[str, str]) -> None:
        self.log.warning(
            "gpushare: kernel %s exited with status %s before its first heartbeat and is restarted without GPU "
            "sharing. To test the interposer, run `gpushare doctor`.",
            self.kernel_id,
            self._failed_with,
        )
        self._environment = environ
        await self._control(
            CONTROL_TIMEOUT,
            "notice",
            code="started_without_interposer",
            params={"status": self._failed_with},
        )

    # -- the scheduler -------------------------------------------------------------------------------------------------

    async def _control(self, timeout: float, op: str, **params: Any) -> None:
        """Send one request about this kernel, in bounded time. Nobody depends on its answer."""
        try:
            await asyncio.wait_for(self._request(op, params), timeout)
        except Exception as error:
            self.log.debug(
                "gpushare: the request %s for kernel %s failed: %r", op, self.kernel_id, error
            )

    async def _request(self, op: str, params: dict[str, Any]) -> None:
        async with self._connected() as ask:
            await ask(op, group=self.kernel_id, **params)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[ticket.Ask]:
        """Connect to the scheduler; use the server's connection where the server had to log in."""
        path = socket_path(self._environment)
        if path in ticket.channels:
            yield ticket.channels[path]
            return
        # Here and not above: the protocol's compiled part is missing in a checkout that was never built, and a kernel
        # must start there too.
        from ..scheduler.protocol.async_client import AsyncControlClient

        async with AsyncControlClient(path) as client:
            yield client.request

    # -- its ticket ----------------------------------------------------------------------------------------------------

    async def _get_ticket(self, path: Path) -> None:
        """Get a ticket, or claim the id where none is needed; if this takes long, the kernel starts in the meantime."""
        if self._getting is not None:
            self._getting.cancel()
        self._getting = asyncio.create_task(self._try_to_get_ticket(path))
        await asyncio.wait([self._getting], timeout=TICKET_TIMEOUT)

    async def _try_to_get_ticket(self, path: Path) -> None:
        pause, said = FIRST_PAUSE, False
        while True:
            try:
                async with self._connected() as ask:
                    if not await ticket.obtain(ask, self.kernel_id, path):
                        self._ticket = None
                return
            except OSError as error:
                why: Exception = error
                if not said:
                    self.log.warning(
                        "gpushare: cannot write the ticket of kernel %s to %s: %s; free some space there, or set "
                        "JUPYTER_RUNTIME_DIR to another folder",
                        self.kernel_id,
                        path,
                        error,
                    )
                    said = True
            except Exception as error:
                # There is no scheduler yet, or it cannot identify this user yet.
                why = error
                if getattr(error, "code", "") == "not_yours":
                    self.log.warning(
                        "gpushare: kernel %s cannot use the GPU: another user has claimed its id; start a new kernel",
                        self.kernel_id,
                    )
                    return
            self.log.debug("gpushare: no ticket for kernel %s yet: %r", self.kernel_id, why)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)

    async def _disown(self) -> None:
        """Let the kernel's ticket go, and its claim."""
        if self._getting is not None:
            self._getting.cancel()
        if self._ticket is None:
            known = not is_own_place(socket_path(self._environment))
        else:
            known = ticket.remove(self.kernel_id, self._ticket)
        if known:
            await self._control(TICKET_TIMEOUT, "revoke")
