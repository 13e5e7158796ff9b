# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare dra-driver``: share this Kubernetes node's GPUs through Dynamic Resource Allocation."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from pathlib import Path
from typing import Any

from ..._version import LIBRARIES
from ...scheduler.node.arguments import complain, count, number, seconds, size
from ...scheduler.protocol.address import MAX_PATH, socket_path
from .node_arguments import (
    NO_DRIVER,
    absolute,
    add_common,
    add_log_level,
    is_subdomain,
    socket_trouble,
)

#: Folders on the node: the kubelet's, the container runtime's for specifications, and the record of claims.
KUBELET, CDI, STATE = Path("/var/lib/kubelet"), Path("/var/run/cdi"), Path("/var/lib/gpushare/dra")


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "dra-driver",
        description="Publish this node's GPUs for Kubernetes' Dynamic Resource Allocation, and prepare the claims of "
        "its pods, until stopped. Many claims share each GPU. A container with a claim also gets the node scheduler's "
        "socket and the gpushare libraries.",
    )
    parser.add_argument(
        "--node-name",
        type=_node,
        default=os.environ.get("GPUSHARE_NODE_NAME") or None,
        metavar="NAME",
        help="name of this node in Kubernetes (default: GPUSHARE_NODE_NAME)",
    )
    _add_sharing(parser)
    parser.add_argument(
        "--expose",
        choices=["cdi", "env"],
        default="cdi",
        help="how a container gets its GPUs; cdi: device names of the Container Device Interface; env: "
        "NVIDIA_VISIBLE_DEVICES, for NVIDIA's container runtime (default: cdi)",
    )
    add_common(parser, "driver")
    _add_folders(parser)
    parser.add_argument(
        "--interval",
        type=seconds,
        default=2.0,
        metavar="S",
        help="interval between checks of the GPUs and the scheduler, in seconds (default: 2)",
    )
    parser.add_argument(
        "--resync",
        type=seconds,
        default=30.0,
        metavar="S",
        help="interval between checks of the published ResourceSlices, in seconds (default: 30)",
    )
    add_log_level(parser)


def _add_sharing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--places-per-gpu",
        type=count(999),
        default=4,
        metavar="N",
        help="number of claims that can share each GPU (default: 4)",
    )
    parser.add_argument(
        "--memory-overcommit",
        type=number("multiple", 1, 100),
        default=1.0,
        metavar="X",
        help="how much GPU memory the claims of a GPU can request together, as a multiple of its memory (default: 1)",
    )
    parser.add_argument(
        "--host-memory",
        type=size,
        metavar="SIZE",
        help="host memory for evicted data that the claims of this node can request, such as 200GiB (default: the "
        "scheduler's limit)",
    )


def _add_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kubelet-dir",
        type=absolute,
        default=KUBELET,
        metavar="DIR",
        help=f"the kubelet's folder (default: {KUBELET})",
    )
    parser.add_argument(
        "--cdi-dir",
        type=absolute,
        default=CDI,
        metavar="DIR",
        help=f"the container runtime's folder for specifications of the Container Device Interface (default: {CDI})",
    )
    parser.add_argument(
        "--state-dir",
        type=absolute,
        default=STATE,
        metavar="DIR",
        help=f"folder for the prepared claims, on a disk of the node (default: {STATE})",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    try:
        from ...deploy.kubernetes.dra.driver import Options
    except ImportError as error:
        return complain(
            f"dra-driver needs grpcio, protobuf and lightkube ({error}); "
            "run: pip install 'jupyter-gpushare[kubernetes]'"
        )
    from ...deploy.kubernetes.dra.slices import Sharing
    from ...deploy.kubernetes.node import NodeError
    from ...deploy.libraries import LibrariesError
    from ...scheduler.protocol.text import log_to_stderr

    log_to_stderr(args.log_level.upper(), "gpushare dra-driver: %(levelname)s: %(message)s")
    options = Options(
        args.node_name or "",
        args.kubelet_dir,
        Sharing(args.places_per_gpu, args.memory_overcommit),
        args.host_memory,
        args.interval,
        args.resync,
    )
    if (trouble := _trouble(args, options)) is not None:
        return complain(trouble)
    try:
        asyncio.run(_serve(args, options))
    except (LibrariesError, NodeError) as error:
        return complain(str(error))
    except OSError as error:
        return complain(
            f"cannot use {error.filename}: {error.strerror}; run the driver as root, or specify another folder"
        )
    return 0


def _trouble(args: argparse.Namespace, options: Any) -> str | None:
    """Return what is wrong with the options on this node."""
    if not options.node:
        return "the name of the node is missing; specify it with --node-name"
    if trouble := socket_trouble(args.socket or socket_path()):
        return trouble
    if not args.kubelet_dir.is_dir():
        return (
            f"{args.kubelet_dir} is not a folder; specify the kubelet's folder with --kubelet-dir"
        )
    if max(len(os.fsencode(path)) for path in (options.endpoint, options.registry)) > MAX_PATH:
        return f"the socket paths in {args.kubelet_dir} are longer than {MAX_PATH} bytes; shorten --kubelet-dir"
    return None


async def _serve(args: argparse.Namespace, options: Any) -> None:
    from ...deploy.kubernetes.dra.cluster import Cluster
    from ...deploy.kubernetes.dra.driver import Driver
    from ...deploy.kubernetes.dra.inspection import Inspection
    from ...deploy.kubernetes.dra.prepared import Mounts, PreparedClaims
    from ...deploy.kubernetes.dra.registrar import Registrar
    from ...deploy.kubernetes.node import Health, NodeError
    from ...deploy.libraries import install_libraries
    from ...scheduler.gpu.devices import Devices
    from ...scheduler.gpu.drivers import find_driver

    driver = find_driver()
    if driver is None or driver.nvml is None:
        raise NodeError(NO_DRIVER)
    # The driver logs by itself, once, that a GPU has gone.
    logging.getLogger(Devices.__module__).setLevel(logging.ERROR)
    if args.library_dir is not None:
        install_libraries(args.library_dir)
    socket = args.socket or socket_path()
    for folder in (options.registry.parent, options.endpoint.parent):
        folder.mkdir(parents=True, exist_ok=True)
    devices = Devices(driver.nvml)
    mounts = Mounts(socket, args.library_dir or LIBRARIES.resolve(), args.expose)
    await Driver(
        options,
        Inspection(devices, Health(devices, socket)),
        PreparedClaims(args.state_dir, args.cdi_dir, mounts),
        Registrar(socket),
        Cluster(),
    ).run()


def _node(text: str) -> str:
    """Check a name as Kubernetes does: a DNS subdomain."""
    if not is_subdomain(text):
        raise argparse.ArgumentTypeError(
            f"invalid name {text!r}; use the name of the node that `kubectl get nodes` shows"
        )
    return text
