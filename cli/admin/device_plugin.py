# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare device-plugin``: offer shares of this Kubernetes node's GPUs to its kubelet."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
from pathlib import Path
from typing import Any

from ..._version import LIBRARIES
from ...scheduler.node.arguments import complain, seconds
from ...scheduler.protocol.address import MAX_PATH, socket_path

#: What a pod asks for by default.
RESOURCE = "jupyter-gpushare/gpu-share"
#: Where the kubelet looks for device plugins.
KUBELET = Path("/var/lib/kubelet/device-plugins")
#: Folders that other programs use as well: a container must not get all of what is there.
_COMMON = {"/", "/dev/shm", "/home", "/root", "/run", "/tmp", "/var/run", "/var/tmp"}


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "device-plugin",
        help="offer shares of a Kubernetes node's GPUs",
        description="Offer shares of this node's GPUs to its kubelet as an extended resource, until ended. "
        "A container that gets some finds the node scheduler's socket and our libraries. See kubernetes.md.",
    )
    parser.add_argument(
        "--shares-per-gpu",
        type=_count,
        default=4,
        metavar="N",
        help="how many shares each GPU has (default: 4)",
    )
    parser.add_argument(
        "--resource",
        type=_resource,
        default=RESOURCE,
        metavar="NAME",
        help=f"the extended resource's name (default: {RESOURCE})",
    )
    parser.add_argument(
        "--several",
        choices=["together", "apart"],
        default="together",
        help="several shares of one container: of as few GPUs as can be, or of as many (default: together)",
    )
    parser.add_argument(
        "--expose",
        choices=["env", "cdi"],
        default="env",
        help="how a container gets its GPUs: by NVIDIA_VISIBLE_DEVICES, for NVIDIA's container runtime, "
        "or by names of the Container Device Interface (default: env)",
    )
    parser.add_argument(
        "--socket",
        type=_absolute,
        metavar="PATH",
        help="the node scheduler's socket, alone in its folder (default: GPUSHARE_SOCKET's)",
    )
    parser.add_argument(
        "--library-dir",
        type=_absolute,
        metavar="DIR",
        help="a folder of the node that our libraries are copied to, for a plugin that runs in a container "
        "(default: none; containers get the installed ones)",
    )
    parser.add_argument(
        "--kubelet-dir",
        type=_absolute,
        default=KUBELET,
        metavar="DIR",
        help=f"the kubelet's folder for device plugins (default: {KUBELET})",
    )
    parser.add_argument(
        "--interval",
        type=seconds,
        default=2.0,
        metavar="S",
        help="seconds between two looks at the GPUs, the scheduler and the kubelet (default: 2)",
    )
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="what goes to standard error (default: info)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until told to end."""
    try:
        from ...deploy.kubernetes.plugin import Options, Plugin
    except ImportError as error:
        return complain(
            f"device-plugin needs grpcio and protobuf ({error}); "
            "run: pip install 'jupyter-gpushare[kubernetes]'"
        )
    from ...deploy.kubernetes.node import Health, NodeError
    from ...deploy.kubernetes.shares import Shares
    from ...deploy.libraries import LibrariesError, install_libraries
    from ...scheduler.gpu.devices import Devices
    from ...scheduler.gpu.drivers import find_driver
    from ...scheduler.protocol.text import log_to_stderr

    log_to_stderr(args.log_level.upper(), "gpushare device-plugin: %(levelname)s: %(message)s")
    # The plugin says itself, and once, that a GPU has gone.
    logging.getLogger(Devices.__module__).setLevel(logging.ERROR)
    socket = args.socket or socket_path()
    options = Options(
        args.resource,
        args.kubelet_dir,
        socket,
        args.library_dir or LIBRARIES.resolve(),
        args.expose,
        args.interval,
    )
    if str(socket.parent) in _COMMON:
        return complain(
            f"containers would get all of {socket.parent}; put the scheduler's socket into a folder of its own "
            "and name it with --socket"
        )
    if not args.kubelet_dir.is_dir():
        return complain(
            f"{args.kubelet_dir} is not a folder; name the kubelet's device-plugins folder with --kubelet-dir"
        )
    if len(os.fsencode(options.endpoint)) > MAX_PATH:
        return complain(
            f"a socket's path can have at most {MAX_PATH} bytes, and {options.endpoint} is longer; "
            "shorten --resource or --kubelet-dir"
        )
    driver = find_driver()
    if driver is None or driver.nvml is None:
        return complain(
            "no NVIDIA driver was found; a container needs NVIDIA's runtime and "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )
    try:
        if args.library_dir is not None:
            install_libraries(args.library_dir)
        shares = Shares(args.shares_per_gpu, args.several)
        asyncio.run(Plugin(options, shares, Health(Devices(driver.nvml), socket)).run())
    except (LibrariesError, NodeError) as error:
        return complain(str(error))
    return 0


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to 1000")
    return value


def _resource(text: str) -> str:
    """Check a name as Kubernetes does: a DNS subdomain, a slash, and up to 63 letters, digits, ``-``, ``_``, ``.``."""
    domain, _, name = text.partition("/")
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    if not (
        re.fullmatch(rf"{label}(\.{label})*", domain)
        and len(domain) <= 253
        and not domain.endswith("kubernetes.io")
        and re.fullmatch(r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", name, re.ASCII)
    ):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name of an extended resource; write a domain (not Kubernetes' own), a slash and a name, "
            f"such as {RESOURCE}"
        )
    return text


def _absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise argparse.ArgumentTypeError(
            f"{text!r} has to be an absolute path: it is mounted from the node"
        )
    return path
