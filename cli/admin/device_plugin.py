# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare device-plugin``: offer slots of this Kubernetes node's GPUs to its kubelet."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
from pathlib import Path
from typing import Any

from ..._version import LIBRARIES
from ...scheduler.node.arguments import complain, count, seconds
from ...scheduler.protocol.address import MAX_PATH, socket_path
from .node_arguments import (
    NO_DRIVER,
    absolute,
    add_common,
    add_log_level,
    is_subdomain,
    socket_trouble,
)

#: The extended resource that a pod requests by default.
RESOURCE = "jupyter-gpushare/gpu-slot"
#: Where the kubelet looks for device plugins.
KUBELET = Path("/var/lib/kubelet/device-plugins")


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "device-plugin",
        description="Offer slots of this node's GPUs to its kubelet as an extended resource, until stopped. A "
        "container that gets a slot also gets the node scheduler's socket and the gpushare libraries.",
    )
    parser.add_argument(
        "--slots-per-gpu",
        type=count(1000),
        default=4,
        metavar="N",
        help="number of slots on each GPU (default: 4)",
    )
    parser.add_argument(
        "--resource",
        type=_resource,
        default=RESOURCE,
        metavar="NAME",
        help=f"name of the extended resource (default: {RESOURCE})",
    )
    parser.add_argument(
        "--several",
        choices=["together", "apart"],
        default="together",
        help="spread the slots of a container over as few GPUs as possible (together) or as many as possible (apart) "
        "(default: together)",
    )
    parser.add_argument(
        "--expose",
        choices=["env", "cdi"],
        default="env",
        help="how a container gets its GPUs; env: NVIDIA_VISIBLE_DEVICES, for NVIDIA's container runtime; cdi: device "
        "names of the Container Device Interface (default: env)",
    )
    add_common(parser, "plugin")
    parser.add_argument(
        "--kubelet-dir",
        type=absolute,
        default=KUBELET,
        metavar="DIR",
        help=f"the kubelet's folder for device plugins (default: {KUBELET})",
    )
    parser.add_argument(
        "--interval",
        type=seconds,
        default=2.0,
        metavar="S",
        help="interval between checks of the GPUs, the scheduler and the kubelet, in seconds (default: 2)",
    )
    add_log_level(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    try:
        from ...deploy.kubernetes.plugin import Options, Plugin
    except ImportError as error:
        return complain(
            f"device-plugin needs grpcio and protobuf ({error}); "
            "run: pip install 'jupyter-gpushare[kubernetes]'"
        )
    from ...deploy.kubernetes.node import Health, NodeError
    from ...deploy.kubernetes.slots import Slots
    from ...deploy.libraries import LibrariesError, install_libraries
    from ...scheduler.gpu.devices import Devices
    from ...scheduler.gpu.drivers import find_driver
    from ...scheduler.protocol.text import log_to_stderr

    log_to_stderr(args.log_level.upper(), "gpushare device-plugin: %(levelname)s: %(message)s")
    # The plugin logs by itself, once, that a GPU has gone.
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
    if trouble := socket_trouble(socket):
        return complain(trouble)
    if not args.kubelet_dir.is_dir():
        return complain(
            f"{args.kubelet_dir} is not a folder; specify the kubelet's folder for device plugins with --kubelet-dir"
        )
    if len(os.fsencode(options.endpoint)) > MAX_PATH:
        return complain(
            f"the socket path {options.endpoint} is longer than {MAX_PATH} bytes; shorten --resource or --kubelet-dir"
        )
    driver = find_driver()
    if driver is None or driver.nvml is None:
        return complain(NO_DRIVER)
    try:
        if args.library_dir is not None:
            install_libraries(args.library_dir)
        slots = Slots(args.slots_per_gpu, args.several)
        asyncio.run(Plugin(options, slots, Health(Devices(driver.nvml), socket)).run())
    except (LibrariesError, NodeError) as error:
        return complain(str(error))
    return 0


def _resource(text: str) -> str:
    """Check a name as Kubernetes does: a DNS subdomain, a slash, and up to 63 letters, digits, ``-``, ``_``, ``.``."""
    domain, _, name = text.partition("/")
    if not (
        is_subdomain(domain)
        and not domain.endswith("kubernetes.io")
        and re.fullmatch(r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", name, re.ASCII)
    ):
        raise argparse.ArgumentTypeError(
            f"invalid resource name {text!r}; use a domain (none of Kubernetes' own), a slash and a name, such as "
            f"{RESOURCE}"
        )
    return text
