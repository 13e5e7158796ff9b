# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare hub``: serve the Hub page."""

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
        description="Serve a page with all nodes' GPUs to the users and administrators of JupyterHub, until stopped. "
        "JupyterHub runs the command as a service and sets its address and token (JUPYTERHUB_API_TOKEN and others).",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="configuration file with settings of c.GpuShareHub, .py or .json (default: none)",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help="URL to listen on, with the path of the page (default: set by JupyterHub)",
    )
    parser.add_argument(
        "--socket", metavar="PATH", help="socket of the node scheduler (default: GPUSHARE_SOCKET)"
    )
    parser.add_argument("--name", metavar="NAME", help="name of this node (default: the host name)")
    parser.add_argument(
        "--node",
        metavar="NAME=URL",
        action="append",
        type=_node,
        help="add the service of another node; can be repeated",
    )
    parser.add_argument(
        "--discover",
        metavar="HOST:PORT",
        action="append",
        help="add all addresses of a host name as services of nodes; can be repeated",
    )
    parser.add_argument(
        "--no-local",
        action="store_true",
        help="show only other nodes, because no scheduler runs on this machine",
    )
    parser.add_argument("--debug", action="store_true", help="log debug messages")


def run(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    from traitlets import TraitError

    from ..scheduler.protocol.text import log_to_stderr
    from .config import ConfigurationError, GpuShareHub, load

    log_to_stderr(
        logging.DEBUG if args.debug else logging.WARNING,
        "%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for name in () if args.debug else ("jupyter_gpushare", "tornado.access"):
        # Libraries log too much at this level.
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
        # Imported late, because it takes a second and mistakes in the settings are reported first.
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
            f"invalid node {text!r}; use NAME=URL, for example gpu2=http://gpu2:8990/"
        )
    return name, url
