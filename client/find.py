# SPDX-License-Identifier: BSD-3-Clause
"""Finds the Jupyter server to which requests go."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit, urlunsplit

from .errors import NoServer

#: The address and the token of a server, for programs that cannot find it.
URL, TOKEN = "GPUSHARE_URL", "GPUSHARE_TOKEN"
#: The token of a user's server on JupyterHub, which its kernels inherit.
HUB_TOKEN = "JUPYTERHUB_API_TOKEN"
#: The process of the server that started a Jupyter kernel.
PARENT = "JPY_PARENT_PID"
#: The kernel in which this process runs.
GROUP = "GPUSHARE_GROUP"
HINT = f"Pass url and token, or set {URL} and {TOKEN}. `jupyter server list` shows both."


class Server(NamedTuple):
    """A Jupyter server: its base URL, which ends with a slash, and its token; empty: none."""

    url: str
    token: str


def find_server(
    url: str | None, token: str | None, environ: Mapping[str, str] = os.environ
) -> Server:
    """Return the server that is stated, that the environment names, that started this kernel, or that runs alone.

    Parameters
    ----------
    url
        The base URL of the server, such as ``http://localhost:8888/``. It may contain the token, as in the addresses
        that Jupyter prints.
    token
        The token.
    environ
        The environment of the process.

    Raises
    ------
    NoServer
        There is no server, or more than one.
    """
    url = url or environ.get(URL)
    given = environ.get(TOKEN) if token is None else token
    if url:
        return _split(url, given if given is not None else environ.get(HUB_TOKEN, ""))
    found = server_of(_choose(running_servers(), environ.get(PARENT, "")), environ)
    return found if given is None else found._replace(token=given)


def server_of(info: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Server:
    """Return the server that states this about itself.

    Raises
    ------
    NoServer
        It has no address.
    """
    token = str(info.get("token") or environ.get(HUB_TOKEN, ""))
    return _split(str(info.get("url", "")), token)


def _split(url: str, token: str) -> Server:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise NoServer(
            f"{url!r} is not the address of a Jupyter server. Use an address such as http://localhost:8888/."
        )
    # Files with tokens end with a newline.
    token = token.strip() or parse_qs(parts.query).get("token", [""])[0]
    path = parts.path
    # Jupyter prints the address of its front end.
    for page in ("lab", "tree"):
        if path.rstrip("/").rpartition("/")[2] == page:
            path = path.rstrip("/").removesuffix(page)
    return Server(urlunsplit((parts.scheme, parts.netloc, path.rstrip("/") + "/", "", "")), token)


def running_servers() -> list[dict[str, Any]]:
    """Return what running servers state about themselves, as `jupyter server list` does."""
    from jupyter_core.paths import jupyter_runtime_dir

    found = []
    for path in sorted(Path(jupyter_runtime_dir()).glob("jpserver-*.json")):
        try:
            info = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # It is being written or removed.
        if _runs(info.get("pid")):
            found.append(info)
    return found


def _runs(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except (TypeError, ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _choose(servers: list[dict[str, Any]], parent: str) -> dict[str, Any]:
    own = [info for info in servers if str(info.get("pid")) == parent]
    found = own or servers
    if not found:
        raise NoServer(f"No Jupyter server is running for this user. {HINT}")
    if len(found) > 1:
        urls = ", ".join(str(info.get("url")) for info in found)
        raise NoServer(f"Several Jupyter servers are running: {urls}. {HINT}")
    if found[0].get("sock"):
        raise NoServer(f"The Jupyter server listens on a Unix socket only. {HINT}")
    return found[0]
