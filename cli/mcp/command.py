# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare mcp``: serves the tools of an agent over the Model Context Protocol."""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

from ...client.errors import NoServer
from ...client.find import TOKEN, URL, find_server
from ...scheduler.node.arguments import complain

#: The default address of the HTTP server.
HOST, PORT = "127.0.0.1", 8765
MISSING = (
    "the MCP server needs the package mcp, version 2 or newer. Install it with: "
    "pip install 'jupyter-gpushare[mcp]'"
)


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "mcp",
        description="Serve tools with which agents see and control how the notebooks of a Jupyter server share its "
        "GPUs, over the Model Context Protocol (MCP). By default, the server uses its standard input and output, and "
        f"the token in {TOKEN} or of the running Jupyter server. With --http, each agent sends its own token.",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help=f"base URL of the Jupyter server; default: ${URL}, or the only server that this user runs",
    )
    parser.add_argument(
        "--http",
        action="store_true",
        help="serve streamable HTTP at /mcp. Agents must send a token of the Jupyter server: 'Authorization: Bearer "
        "TOKEN'",
    )
    parser.add_argument(
        "--host", default=HOST, help="address to listen on with --http; default: %(default)s"
    )
    parser.add_argument(
        "--port",
        type=port,
        default=PORT,
        help="port to listen on with --http, 0 for any free one; default: %(default)s",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until the agent ends the connection, or until an interrupt."""
    if not available():
        return complain(MISSING)
    from . import tools

    try:
        if args.http:
            # Each request brings its token.
            url = find_server(args.url, "").url
            return tools.serve_http(url, args.host, args.port)
        find_server(args.url, None)
    except (NoServer, OSError) as error:
        return complain(str(error))
    return tools.serve_stdio(args.url)


def port(text: str) -> int:
    """Parse a port to listen on."""
    if not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"invalid port {text!r}; use a number from 0 to 65535")
    return int(text)


def available() -> bool:
    """Whether the package mcp is installed in a version that can be used."""
    try:
        return importlib.util.find_spec("mcp.server.mcpserver") is not None
    except ImportError:
        return False
