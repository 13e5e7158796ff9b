# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare hub``: JupyterHub's page of all GPUs."""

from __future__ import annotations

import argparse
import asyncio
import logging
from typing import Any

from ..scheduler.node.arguments import complain


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "hub",
        help="serve the page of all GPUs, as a service of JupyterHub",
        description="Serve the page of all nodes' GPUs to JupyterHub's users and administrators, until ended. "
        "JupyterHub says where and as whom (JUPYTERHUB_API_TOKEN and so on). See docs/how-to/admin/hub-page.md.",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="settings: c.GpuShareHub in a .py or .json (default: none)"
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help="where to listen, with the page's path (default: where JupyterHub says)",
    )
    parser.add_argument(
        "--socket", metavar="PATH", help="the node scheduler's socket (default: GPUSHARE_SOCKET's)"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="what this node is called (default: the host's name)"
    )
    parser.add_argument(
        "--node",
        metavar="NAME=URL",
        action="append",
        type=_node,
        help="another node's service; once for each",
    )
    parser.add_argument(
        "--discover",
        metavar="HOST:PORT",
        action="append",
        help="a name of which every address is a node's service; once for each",
    )
    parser.add_argument(
        "--no-local",
        action="store_true",
        help="show other nodes only: no scheduler runs on this machine",
    )
    parser.add_argument("--debug", action="store_true", help="log more")


def run(args: argparse.Namespace) -> int:
    """Serve until ended."""
    from traitlets import TraitError

    from ..scheduler.protocol.text import log_to_stderr
    from .config import ConfigurationError, GpuShareHub, load

    log_to_stderr(
        logging.DEBUG if args.debug else logging.WARNING,
        "%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for name in () if args.debug else ("jupyter_gpushare", "tornado.access"):
        # Those of the libraries say much that nobody asked for.
        logging.getLogger(name).setLevel(logging.INFO)
    given = {
        "url": args.url,
        "socket": args.socket,
        "node_name": args.name,
        "nodes": dict(args.node) if args.node else None,
        "discover": args.discover,
        "local": False if args.no_local else None,
    }
    try:
        config = load(args.config, {name: v for name, v in given.items() if v is not None})
        settings = GpuShareHub(config=config)
        # It takes a second: mistakes are named before.
        from .app import serve

        asyncio.run(serve(settings, config))
    except (ConfigurationError, TraitError) as error:
        return complain(str(error))
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "jupyterhub":
            raise
        return complain(
            'the Hub service needs jupyterhub; run: pip install "jupyter-gpushare[jupyterhub]"'
        )
    return 0


def _node(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    if not name or not url:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no NAME=URL; write for instance gpu2=http://gpu2:8990/"
        )
    return name, url
