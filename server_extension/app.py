# SPDX-License-Identifier: BSD-3-Clause
"""The server extension: puts the parts together and knows whether the GPU is shared, and if not, why."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from jupyter_events import EventLogger
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp
from traitlets import TraitError

from ..kernel_provisioner import GpuShareProvisioner, ticket
from ..scheduler.gpu.drivers import DriverError, find_driver, libraries
from ..scheduler.node.entitlements import Shares, entitlement, parsed
from ..scheduler.protocol.async_client import AsyncControlClient
from ..scheduler.protocol.client import ControlError, SchedulerUnreachable, user_name
from ..scheduler.protocol.supervisor import SchedulerHost
from ..scheduler.views.culling import is_waiting
from . import executors
from .cells import KERNEL_ACTIONS, CellWatcher
from .config import GpuShare
from .delta import State
from .dependencies import mismatch
from .feed import SCHEMA, Feed
from .focus import Focus
from .handlers import handlers
from .origins import Origins
from .preferences import Preferences
from .provisioning import PROVISIONER, choose_provisioner, default_provisioner
from .queued import Source
from .reservations import ReservationWaiters
from .second_kernels import SecondKernelNotices
from .sessions import FRESH, Documents
from .shares import stated, used
from .unshared import unshared

CONTENTS = "https://events.jupyter.org/jupyter_server/contents_service/v1"

#: Seconds between two times that the scheduler is told which tickets are still needed: it forgets the others in days.
RENEWAL = 12 * 3600.0

#: Seconds after a file was renamed by which the session of its notebook has been, too, and is not known from before.
RENAMED = FRESH + 0.5

#: Seconds between renewals of the activity of kernels that are waiting for the GPU.
ACTIVITY_PERIOD = 10.0

#: Seconds after which a server that has loaded the extension and not started it never will.
START_TIMEOUT = 30.0
NEVER_STARTED = "the Jupyter server loaded the extension but never started it"


class GpuShareExtension(ExtensionApp):
    """Lets the notebooks of this server share its GPUs."""

    name = "jupyter_gpushare"
    description = "Lets notebooks share a GPU; configured through GpuShare."
    classes = [ServerApp, GpuShare]  # noqa: RUF012 - as its base has it
    serverapp: ServerApp

    #: What the configuration says; None if it has a mistake.
    options: GpuShare | None = None
    #: Why nothing is shared, whatever the scheduler says: a code and its parameters.
    obstacle: tuple[str, dict[str, Any]] | None = None

    host: SchedulerHost | None = None
    feed: Feed
    _watcher: CellWatcher | None = None
    #: Packages that keep cells in a queue of their own and send them to kernels one by one.
    queue_sources: list[Source]
    _origins: Origins | None = None
    documents: Documents
    focus: Focus
    #: What users and teams are entitled to, as the scheduler told last: what this server states to a new one.
    shares: Shares
    #: Held while they change.
    _sharing: asyncio.Lock
    _preferences: Preferences
    _second_kernels: SecondKernelNotices
    reservations: ReservationWaiters
    #: The process of the scheduler that received the preferences last.
    _told: int | None = None
    #: Kernels that were there before us.
    _before: frozenset[str] = frozenset()
    _tasks: set[asyncio.Task[Any]]
    #: When the server will have started the extension, on CLOCK_MONOTONIC; None once it has.
    _start_by: float | None = None

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
        if not self.options.enabled:
            self.obstacle = "disabled", {}
        elif not hasattr(ExtensionApp, "_start_jupyter_server_extension"):
            self._cannot_start(str(mismatch("jupyter_server") or NEVER_STARTED))
        else:
            choose_provisioner(serverapp)
            self._start_by = time.monotonic() + START_TIMEOUT

    def initialize_handlers(self) -> None:
        """Register the REST API and the event."""
        self.handlers.extend(handlers())
        events = self._events
        events.register_event_schema(SCHEMA)
        self.feed = Feed(events, self._state, self.log)
        self.documents = Documents(self.serverapp.session_manager, self.send, self.log)
        self.focus = Focus(user_name(os.getuid()), self.send)
        self.shares = dict(self.options.shares) if self.options is not None else {}
        self._sharing = asyncio.Lock()
        self._preferences = Preferences()
        self.queue_sources = []
        self._second_kernels = SecondKernelNotices()
        self.reservations = ReservationWaiters(
            lambda group: self.request("reservation", group=group)
        )
        self._tasks = set()

    async def _start_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        """Begin, once the event loop runs; nothing here waits for the scheduler."""
        if self.obstacle is not None or self.options is None:
            return
        self._start_by = None
        try:
            await self._start(serverapp, self.options)
        except Exception as error:
            self.log.debug("gpushare: the extension did not start", exc_info=True)
            self._cannot_start(f"the server extension failed: {error!r}")

    def _cannot_start(self, why: str) -> None:
        self.host = None
        self.obstacle = "not_started", {"error": why}
        self.log.error("gpushare: the GPU is not shared: %s", why)

    async def _start(self, serverapp: ServerApp, options: GpuShare) -> None:
        if serverapp.gateway_config.gateway_enabled:
            self.obstacle = "remote_kernels", {"url": serverapp.gateway_config.url}
            return
        self.obstacle = await asyncio.to_thread(_driver_obstacle)
        if self.obstacle is not None:
            self.log.info("gpushare: the GPU is not shared: %s %s", *self.obstacle)
            return
        self.host = SchedulerHost(
            options.path(),
            start=options.may_host,
            arguments=options.scheduler_arguments(),
            on_connect=self._on_connect,
            on_disconnect=self._on_disconnect,
        )
        events = self._events
        self._before = frozenset(serverapp.kernel_manager.list_kernel_ids())
        self.queue_sources += executors.sources(serverapp)
        self._origins = Origins(serverapp, options.agents, self.log)
        if options.detect_agents:
            self._origins.start()
        self._watcher = CellWatcher(
            serverapp.kernel_manager,
            events,
            self.send,
            self.queue_sources,
            self._origins,
            self.log,
        )
        self._watcher.start()
        events.add_listener(schema_id=CONTENTS, listener=self._on_contents)
        events.add_listener(schema_id=KERNEL_ACTIONS, listener=self._on_kernel)
        if ticket.may_be_needed():
            # Kernels that start or end use the server's connection, so they need not log in themselves.
            ticket.holder.is_server()
            ticket.channels[self.host.path] = self.host.request
        await self.host.start()
        self._spawn(self._keep_waiting_kernels())

    async def stop_extension(self) -> None:
        """End, and with us a scheduler that we started."""
        await self.feed.stop()
        self.focus.stop()
        if self.host is None:
            return
        self._events.remove_listener(schema_id=CONTENTS, listener=self._on_contents)
        self._events.remove_listener(schema_id=KERNEL_ACTIONS, listener=self._on_kernel)
        if self._watcher is not None:
            self._watcher.stop()
        if self._origins is not None:
            self._origins.stop()
        ticket.channels.pop(self.host.path, None)
        await self.host.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def _events(self) -> EventLogger:
        events = self.serverapp.event_logger
        assert events is not None, "the server creates it before it loads extensions"
        return events

    @property
    def user(self) -> str:
        """Whose kernels this server starts, as the scheduler calls them."""
        me = self.host.me if self.host is not None else {}
        return str(me.get("user") or user_name(os.getuid()))

    @property
    def administers(self) -> bool:
        """Whether this server may change settings that affect all users, as far as is known."""
        me = self.host.me if self.host is not None else {}
        return bool(me.get("admin", True))

    @property
    def prefetches(self) -> bool:
        """Whether the scheduler is told which notebooks will soon use the GPU."""
        return self.options is not None and bool(self.options.prefetch)

    @property
    def on_node(self) -> bool:
        """Whether the scheduler serves other users, too: what concerns everybody is not for servers to state."""
        me = self.host.me if self.host is not None else {}
        return bool(me.get("node", False))

    # --- What the API does ----------------------------------------------------------------------

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

    async def entitled(self) -> dict[str, Any]:
        """Return what users and teams are entitled to, and have had of each GPU."""
        reply = await self.request("shares")
        return {"shares": stated(reply), "used": used(reply)}

    async def entitle(self, change: Callable[[Shares], Any]) -> dict[str, Any]:
        """Change what users and teams are entitled to, and return all of it.

        Parameters
        ----------
        change
            Makes the new shares of the old ones.

        Raises
        ------
        ControlError
            If they cannot be.
        """
        async with self._sharing:
            before = stated(await self.request("shares"))
            after = change(before)
            news = after
            if isinstance(after, dict):
                news = {whose: one for whose, one in after.items() if one != before.get(whose)}
            try:
                news = parsed(news)
            except ValueError as error:
                raise ControlError(str(error)) from None
            for whose in [*(before.keys() - after.keys()), *news]:
                await self.request("entitle", whose=whose, **entitlement(news.get(whose)))
            return await self.entitled()

    def send(self, op: str, params: dict[str, Any]) -> None:
        """Send a control request without waiting for the reply, if there is a scheduler."""
        if self.host is None or (client := self.host.client) is None:
            return
        self._spawn(self._try(client, op, params))

    async def _state(self, timeline: int | None) -> State:
        """Make the state that all viewers share: the scheduler's status, and what only this server knows."""
        params = {} if timeline is None else {"timeline": timeline}
        status: State = {
            "time": time.monotonic(),
            "settings": None,
            "hibernation": None,
            "gpus": [],
            "host": None,
            "groups": [],
            "notices": [],
        }
        code, why = self._availability()
        client = self.host.client if self.host else None
        if client is not None and client.late:
            # Requests in the meantime get this reply at once, instead of each waiting in turn.
            code, why = self._unreachable(f"the scheduler at {client.path} is not responding")
        elif client is not None and code in ("ok", "provisioner_not_default"):
            try:
                status |= (await client.request("status", **params))["status"]
            except ControlError as error:
                code, why = self._unreachable(str(error))
        for gpu in status["gpus"]:
            # It changes every second, and each change would be a message to all pages.
            gpu.pop("power", None)
        if status["settings"] is not None and not self.prefetches:
            status["settings"] = {**status["settings"], "prefetch": False}
        documents = await self.documents.by_kernel() if self.host else {}
        for group in status["groups"]:
            group["sessions"] = documents.get(group["id"], [])
        status["notices"] = [*status["notices"], *self._second_kernels.notices(documents)]
        return {
            **status,
            "timeline": status.get("timeline"),
            "availability": {"code": code, "params": why},
            "unshared": self._unshared(documents) if self.host else [],
        }

    def _unshared(self, documents: dict[str, list[dict[str, Any]]]) -> list[State]:
        default = default_provisioner(self.serverapp)
        found = unshared(self.serverapp.kernel_manager, self._before, default)
        return [
            {
                "kernel_id": kernel_id,
                "code": code,
                "params": params,
                "sessions": documents.get(kernel_id, []),
            }
            for kernel_id, (code, params) in found.items()
        ]

    def _availability(self) -> tuple[str, dict[str, Any]]:
        """Whether the GPU is shared, and if not, why."""
        if self.obstacle is not None:
            return self.obstacle
        if self.host is None:
            if self._start_by is not None and time.monotonic() > self._start_by:
                return "not_started", {"error": NEVER_STARTED}
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
        self.feed.restart()
        self.focus.user = self.user
        # In this order, so that changes to preferences in the meantime arrive as events.
        self._spawn(self._follow(client))
        self._spawn(self._repeat(client))
        self._spawn(self._renew_tickets(client))
        if self._watcher is not None:
            self._watcher.announce()

    def _on_disconnect(self) -> None:
        self.feed.changed()

    async def _follow(self, client: AsyncControlClient) -> None:
        """Take in the scheduler's events until the connection ends."""
        try:
            async for event in client.subscribe():
                self.feed.changed()
                self._take_in(event.get("kind"), str(event.get("group")), event)
        except ControlError as error:
            self.log.debug("gpushare: %s", error)

    def _take_in(self, kind: str | None, group: str, event: dict[str, Any]) -> None:
        if kind == "join":
            # A kernel joins in the middle of the cell that uses CUDA first, or after a new scheduler.
            if self._watcher is not None:
                self._watcher.announce(group)
            self._spawn(self.documents.joined(group))
            self._spawn(self._state_shares(group))
        elif kind == "cell" and self._watcher is not None:
            self._watcher.note_cell(group, event["phase"], str(event["msg_id"]))
        elif kind == "reservation":
            self.reservations.changed(group, event["result"])
        elif kind == "entitle":
            self.shares.pop(event["whose"], None)
            self.shares |= stated({"shares": {event["whose"]: event}})
        elif kind == "adjust" and self._remembers(group):
            self._preferences.note(group, event["preferences"])
        elif kind == "leave" and group not in self.serverapp.kernel_manager:
            # Our kernels come back when they are restarted.
            self._preferences.forget(group)

    async def _repeat(self, client: AsyncControlClient) -> None:
        """Tell a new scheduler what people asked for, and what they call their kernels.

        Kernels may be there before, with a lease that they had of the last one: until then nothing was asked for them.
        """
        self.focus.repeat()
        try:
            status = (await client.request("status"))["status"]
            pid = status["scheduler"]["pid"]
            if pid != self._told:
                await self._repeat_shares(client)
            self.shares = stated(await client.request("shares"))
            await self._state_tickets(client)
            preferences = self._preferences.untold(status) if pid != self._told else {}
            self._preferences.learn(self._remembered(status), but=preferences)
            self._told = pid
            for group in status["groups"]:
                await self.documents.joined(group["id"])
            for group, preference in preferences.items():
                await self._try(client, "adjust", {"group": group, **preference, "later": True})
            for kernel_id in self.serverapp.kernel_manager.list_kernel_ids():
                await self._state_shares(kernel_id)
        except ControlError as error:
            self.log.debug("gpushare: %s", error)

    async def _keep_waiting_kernels(self) -> None:
        while True:
            await asyncio.sleep(ACTIVITY_PERIOD)
            await self.keep_waiting_kernels()

    async def keep_waiting_kernels(self) -> None:
        """Count kernels that are waiting for the GPU as active, so that they are not culled.

        A waiting cell sends no messages. In addition, the server considers a kernel idle as soon as one of its
        subshells or a widget's message is done, although the cell is still running. With a reservation, a kernel waits
        without a cell.
        """
        running = self._watcher.running() if self._watcher else set()
        client = self.host.client if self.host else None
        if client is None or not (running or self.reservations.made):
            return
        try:
            groups = (await client.request("status"))["status"]["groups"]
        except ControlError as error:
            self.log.debug("gpushare: activity: %s", error)
            return
        self.reservations.made.intersection_update(g["id"] for g in groups if g["reservation"])
        waiting = {
            group["id"]
            for group in groups
            if is_waiting(group) and (group["id"] in running or group["reservation"])
        }
        kernels = self.serverapp.kernel_manager
        for kernel_id in waiting.intersection(kernels.list_kernel_ids()):
            now = datetime.now(timezone.utc)
            kernel: Any = kernels.get_kernel(kernel_id)
            kernel.last_activity = now
            # What JupyterHub and `shutdown_no_activity_timeout` ask for.
            self.serverapp.web_app.settings["last_activity_times"]["jupyter_gpushare"] = now

    def _remembered(self, status: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the groups whose preferences this server remembers: with a node's scheduler, only its own kernels."""
        groups: list[dict[str, Any]] = status["groups"]
        return [group for group in groups if self._remembers(group["id"])]

    def _remembers(self, group: str) -> bool:
        return not self.on_node or group in self.serverapp.kernel_manager

    async def _repeat_shares(self, client: AsyncControlClient) -> None:
        if self.on_node:
            if self.options is not None and self.options.shares:
                self.log.info(
                    "gpushare: c.GpuShare.shares is ignored, because the node scheduler's administrator sets the shares"
                )
            return
        for whose, one in list(self.shares.items()):
            try:
                await client.request("entitle", whose=whose, **entitlement(one))
            except SchedulerUnreachable:
                raise
            except ControlError as error:
                self.log.warning("gpushare: the shares of %s were not accepted: %s", whose, error)

    async def _state_tickets(self, client: AsyncControlClient) -> None:
        """Say which kernels go on, so that nobody else's ticket holds; those whose ticket was lost get a new one."""
        me = self.host.me if self.host is not None else {}
        if not (ticket.may_be_needed() and me.get("tickets")):
            if me.get("claims"):
                # Those that were started while there was no scheduler to tell.
                for kernel_id in self.serverapp.kernel_manager.list_kernel_ids():
                    if self._provisioner(kernel_id) is not None:
                        await self._try(client, "claim", {"group": kernel_id})
            return
        groups = sorted(ticket.held.union(self.serverapp.kernel_manager.list_kernel_ids()))
        reply = await client.request("tickets", server=ticket.holder.name, groups=groups)
        for kernel_id in reply["missing"]:
            if (provisioner := self._provisioner(kernel_id)) is not None:
                self._spawn(provisioner.renew_ticket())

    async def _renew_tickets(self, client: AsyncControlClient) -> None:
        """Keep the tickets of kernels that have not used the GPU for days."""
        while client.connected:
            try:
                await asyncio.wait_for(client.wait_lost(), RENEWAL)
            except asyncio.TimeoutError:
                with contextlib.suppress(ControlError):
                    await self._state_tickets(client)

    def _provisioner(self, kernel_id: str) -> GpuShareProvisioner | None:
        kernels = self.serverapp.kernel_manager
        kernel = kernels.get_kernel(kernel_id) if kernel_id in kernels else None
        provisioner = getattr(kernel, "provisioner", None)
        return provisioner if isinstance(provisioner, GpuShareProvisioner) else None

    async def _state_shares(self, kernel_id: str) -> None:
        """Let a kernel state what its kernelspec asks for, if there was no scheduler when it started."""
        if (provisioner := self._provisioner(kernel_id)) is not None:
            await provisioner.state_shares()

    async def _on_contents(self, logger: EventLogger, schema_id: str, data: dict[str, Any]) -> None:
        if data.get("action") == "rename":
            await asyncio.sleep(RENAMED)
            await self.documents.by_kernel()
            self.feed.changed()

    async def _on_kernel(self, logger: EventLogger, schema_id: str, data: dict[str, Any]) -> None:
        kernel_id = str(data.get("kernel_id"))
        if data.get("action") == "shutdown" and kernel_id not in self.serverapp.kernel_manager:
            self._preferences.forget(kernel_id)
        self.feed.changed()

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
