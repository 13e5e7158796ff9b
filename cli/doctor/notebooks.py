# SPDX-License-Identifier: BSD-3-Clause
"""Checks that each notebook has one kernel, on all running Jupyter servers of the user."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.request import Request

from ...client.blocking import make_opener
from ...client.calls import headers
from ...client.errors import NoServer
from ...client.find import Server, running_servers, server_of
from ...scheduler.views.words.notices import notice_text
from ...server_extension.second_kernels import CODE, file_of, second_kernels
from .finding import Finding

#: Seconds that a server has to respond.
PATIENCE = 5.0


def notebooks() -> Iterator[Finding]:
    """List the notebooks with more than one kernel."""
    topic = "notebooks"
    documents: list[dict[str, Any]] = []
    servers = 0
    for info in running_servers():
        try:
            found = _sessions(server_of(info))
        except (OSError, ValueError, NoServer):
            continue  # It is ending, or this user may not read its sessions.
        servers += 1
        root = str(info.get("root_dir", ""))
        for session in found:
            # Two servers may have different roots.
            path = os.path.realpath(os.path.join(root, file_of(session["path"])))
            documents.append(
                {"path": path, "type": session["type"], "kernel_id": session["kernel"]["id"]}
            )
    found_twice = second_kernels(documents)
    for second in found_twice:
        yield Finding(
            topic,
            "warn",
            notice_text({"code": CODE, "params": second.params}, f"/{second.path}"),
            "shut down the kernel that you do not use",
        )
    if servers and not found_twice:
        yield Finding(topic, "ok", "each has one kernel")


def _sessions(server: Server) -> list[dict[str, Any]]:
    request = Request(f"{server.url}api/sessions", headers=headers(server))
    with make_opener(server.url).open(request, timeout=PATIENCE) as answer:
        found = json.load(answer)
    return [one for one in found if isinstance(one.get("kernel"), dict)]
