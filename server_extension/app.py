# SPDX-License-Identifier: BSD-3-Clause
"""The server extension: puts the parts together and knows whether the GPU is shared, and if not, why."""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_events import EventLogger
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp
from traitlets import TraitError

from ..scheduler.control import AsyncControlClient, ControlError, SchedulerUnreachable
from ..scheduler.drivers import DriverError, find_driver, libraries
from ..scheduler.host import SchedulerHost
from .cells import CellWatcher
from .config import GpuShare
from .handlers import handlers
from .hints import SCHEMA, Hints
from .provisioning import PROVISIONER, choose_provisioner, default_provisioner
from .sessions import Notebooks

CONTENTS = "https://events.jupyter.org/jupyter_server/contents_service/v1"

#: Seconds after a file was renamed by which the session of its notebook has been, too.
RENAMED = 1.0


class GpuShareExtension(ExtensionApp):
    """Lets the notebooks of this server share its GPUs."""

    name = "jupyter_gpushare"
    description = "Lets notebooks share a GPU; its configuration is that of GpuShare."
    classes = [ServerApp, GpuShare]  # noqa: RUF012 - as its base has it
    serverapp: ServerApp

    #: What the configuration says; None if it has a mistake.
    options: GpuShare | None = None
    #: Why nothing is shared, whatever the scheduler says: a code and its parameters.
    obstacle: tuple[str, dict[str, Any]] | None = None

    host: SchedulerHost | None = None
    _watcher: CellWatcher | None = None
    _notebooks: Notebooks
    _hints: Hints
    _tasks: set[asyncio.Task[Any]]

    def _config_file_name_default(self) -> str:
        return "jupyter_gpushare_config"

    # --- Life -----------------------------------------------------------------------------------

    def _link_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        super()._link_jupyter_server_extension(serverapp)
        try:
            self.options = GpuShare(parent=self)
        except TraitError as error:
            text = " ".join(str(error).split())
            self.log.error("gpushare: the GPU is not shared: %s", text)
            self.obstacle = "bad_configuration", {"error": text}
            return
        if self.options.enabled:
            choose_provisioner(serverapp)
        else:
            self.obstacle = "disabled", {}

    def initialize_handlers(self) -> None:
        """Register the REST API and the event."""
        self.handlers.extend(handlers())
        events = self._events
        events.register_event_schema(SCHEMA)
        interval = self.options.hint_interval if self.options else 1.0
        self._hints = Hints(events, interval)
        self._notebooks = Notebooks(self.serverapp.session_manager, self.send)
        self._tasks = set()

    async def _start_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        """Begin, once the event loop runs; nothing here waits for the scheduler."""
        options = self.options
        if self.obstacle is not None or options is None:
            return
        if serverapp.gateway_config.gateway_enabled:
            self.obstacle = "remote_kernels", {"url": serverapp.gateway_config.url}
            return
        self.obstacle = await asyncio.to_thread(_driver_obstacle)
        if self.obstacle is not None:
            self.log.info("gpushare: the GPU is not shared: %s %s", *self.obstacle)
            return
        self.host = SchedulerHost(
            options.path(),
            start=options.may_host(),
            arguments=options.scheduler_arguments(),
            on_connect=self._on_connect,
            on_disconnect=self._on_disconnect,
        )
        events = self._events
        self._watcher = CellWatcher(serverapp.kernel_manager, events, self.send, self.log)
        self._watcher.start()
        events.add_listener(schema_id=CONTENTS, listener=self._on_contents)
        await self.host.start()

    async def stop_extension(self) -> None:
        """End, and with us a scheduler that we started."""
        if self.host is None:
            return
        self._events.remove_listener(schema_id=CONTENTS, listener=self._on_contents)
        if self._watcher is not None:
            self._watcher.stop()
        await self.host.stop()
        self._hints.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def _events(self) -> EventLogger:
        events = self.serverapp.event_logger
        assert events is not None, "the server makes it before it loads extensions"
        return events

    # --- What the API does ----------------------------------------------------------------------

    async def status(self) -> dict[str, Any]:
        """Return the scheduler's status with what the server adds: docs/control.md, "In the server"."""
        # What changes from here on may not be in the answer, and has a higher number.
        hint = self._hints.sequence
        status: dict[str, Any] = {
            "time": 0.0,
            "gpus": [],
            "host": None,
            "groups": [],
            "notices": [],
        }
        code, params = self._availability()
        if code in ("ok", "provisioner_not_default") and self.host and self.host.client:
            try:
                status = (await self.host.client.request("status"))["status"]
            except ControlError as error:
                code, params = self._unreachable(str(error))
        sessions = await self._notebooks.by_kernel()
        for group in status["groups"]:
            group["session"] = sessions.get(group["id"])
        return {**status, "availability": {"code": code, "params": params}, "hint": hint}

    async def request(self, op: str, **params: Any) -> dict[str, Any]:
        """Send a control request and return the answer.

        Raises
        ------
        ControlError
            If the scheduler refuses it.
        SchedulerUnreachable
            If there is none.
        """
        if self.host is None:
            code = self.obstacle[0] if self.obstacle else "starting"
            raise SchedulerUnreachable(f"this server does not share a GPU: {code}")
        return await self.host.request(op, **params)

    def send(self, op: str, params: dict[str, Any]) -> None:
        """Send a control request that nobody waits for, if there is a scheduler."""
        if self.host is None or (client := self.host.client) is None:
            return
        self._spawn(self._try(client, op, params))

    def _availability(self) -> tuple[str, dict[str, Any]]:
        """Whether the GPU is shared, and if not, why."""
        if self.obstacle is not None:
            return self.obstacle
        if self.host is None:
            return "starting", {}
        if self.host.client is None:
            return self._unreachable(self.host.trouble) if self.host.trouble else ("starting", {})
        provisioner = default_provisioner(self.serverapp)
        if provisioner != PROVISIONER:
            return "provisioner_not_default", {"provisioner": provisioner}
        return "ok", {}

    def _unreachable(self, error: str) -> tuple[str, dict[str, Any]]:
        path = str(self.host.path) if self.host else ""
        return "scheduler_unreachable", {"socket": path, "error": error}

    # --- What happens ---------------------------------------------------------------------------

    def _on_connect(self, client: AsyncControlClient) -> None:
        self._hints.add("connection")
        self._spawn(self._follow(client))
        if self._watcher is not None:
            self._watcher.announce()

    def _on_disconnect(self) -> None:
        self._hints.add("connection")

    async def _follow(self, client: AsyncControlClient) -> None:
        """Turn the scheduler's events into hints until the connection ends."""
        try:
            async for event in client.subscribe():
                self._hints.add(str(event.get("kind", "")))
                if event.get("kind") == "join" and self._watcher is not None:
                    # A kernel joins in the middle of the cell that uses CUDA first, or after a new scheduler.
                    self._watcher.announce(event.get("group"))
        except ControlError as error:
            self.log.debug("gpushare: %s", error)

    async def _on_contents(self, logger: EventLogger, schema_id: str, data: dict[str, Any]) -> None:
        if data.get("action") == "rename":
            await asyncio.sleep(RENAMED)
            await self._notebooks.by_kernel()

    async def _try(self, client: AsyncControlClient, op: str, params: dict[str, Any]) -> None:
        try:
            await client.request(op, **params)
        except ControlError as error:
            self.log.debug("gpushare: %s: %s", op, error)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _driver_obstacle() -> tuple[str, dict[str, Any]] | None:
    """Why the GPU cannot be shared on this machine; it asks other programs, so not in the event loop."""
    try:
        if find_driver() is None:
            return "no_driver", {}
        libraries()
    except DriverError as error:
        return "not_installed", {"error": str(error)}
    return None
