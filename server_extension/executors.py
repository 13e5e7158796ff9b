# SPDX-License-Identifier: BSD-3-Clause
"""Counts the cells in the queues of extensions that run cells on the server, one by one.

These extensions have no API for this, so their private attributes are read whenever a kernel reports that a cell begins
or ends. If a version of an extension has other attributes, nothing is counted.
"""

from __future__ import annotations

from typing import Any

from jupyter_server.serverapp import ServerApp

from .queued import Source


def sources(app: ServerApp) -> list[Source]:
    """Return a source for each of these extensions that a server has loaded."""
    found: list[Source] = []
    for extension in app.extension_manager.extension_apps.get("jupyter_server_nbmodel", ()):
        found += [_nbmodel(stack) for stack in _stacks(extension)]
    rooms = app.web_app.settings.get("yroom_manager")
    if hasattr(rooms, "_rooms_by_id"):
        found.append(_documents(rooms))
    return found


def _stacks(extension: Any) -> list[Any]:
    """Return the objects in which jupyter-server-nbmodel keeps its queues, from the options of its handlers."""
    options = [each[2] for each in extension.handlers if isinstance(each, tuple) and len(each) > 2]
    found = [each["execution_stack"] for each in options if "execution_stack" in each]
    return list({id(stack): stack for stack in found}.values())


def _nbmodel(stack: Any) -> Source:
    # `stack.pending` returns the same, but encodes all outputs of the running cell each time.
    def queued(kernel_id: str) -> int:
        queue = stack._ExecutionStack__tasks.get(kernel_id)
        return 0 if queue is None else int(queue.qsize())

    return queued


def _documents(rooms: Any) -> Source:
    """Count in the documents of jupyter-server-documents that are connected to the kernel."""

    def queued(kernel_id: str) -> int:
        return sum(
            room._execution_queue.qsize()
            for room in rooms._rooms_by_id.values()
            if getattr(getattr(room, "_kernel_manager", None), "kernel_id", None) == kernel_id
            and room._execution_queue is not None
        )

    return queued
