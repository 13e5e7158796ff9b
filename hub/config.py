# SPDX-License-Identifier: BSD-3-Clause
"""Settings of the Hub service (``gpushare hub``)."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from traitlets import Bool, Dict, Float, Int, List, TraitError, Unicode, default, validate
from traitlets.config import LoggingConfigurable
from traitlets.config.loader import (
    Config,
    ConfigFileNotFound,
    JSONFileConfigLoader,
    PyFileConfigLoader,
)

from ..scheduler.protocol.address import socket_path, too_long

#: Default port of the service.
PORT = 8990
#: Valid names of nodes, which are part of addresses.
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


class ConfigurationError(Exception):
    """The service cannot start with these settings; the message names the cause and the remedy."""


class GpuShareHub(LoggingConfigurable):
    """Settings of the Hub service, for example ``c.GpuShareHub.nodes = {"gpu2": "http://gpu2:8990/"}``."""

    service_name = Unicode(
        help="Name of this service in JupyterHub's configuration (default: $JUPYTERHUB_SERVICE_NAME, otherwise "
        "gpushare).",
    ).tag(config=True)

    url = Unicode(
        help="URL to listen on, with the path of the page behind the Hub's proxy. Other machines can connect only if "
        "the address is not 127.0.0.1 (default: $JUPYTERHUB_SERVICE_URL and $JUPYTERHUB_SERVICE_PREFIX, otherwise "
        f"http://127.0.0.1:{PORT}/services/NAME/).",
    ).tag(config=True)

    certfile = Unicode(help="File with the certificate for https (default: none).").tag(config=True)

    keyfile = Unicode(help="File with the private key of the certificate (default: none).").tag(
        config=True
    )

    local = Bool(
        True,
        help="Show the GPUs of this machine's node scheduler; False shows other nodes only (default: True).",
    ).tag(config=True)

    socket = Unicode(
        help="Path of the node scheduler's socket (default: $GPUSHARE_SOCKET, otherwise gpushare/scheduler.sock in "
        "the runtime folder of the user that runs the service).",
    ).tag(config=True)

    node_name = Unicode(
        help="Name of this node on the page and in addresses (default: $GPUSHARE_NODE_NAME, otherwise the host name).",
    ).tag(config=True)

    nodes = Dict(
        help="URLs of the services of other nodes, by node name. A URL without a path gets this service's path "
        "(default: none).",
    ).tag(config=True)

    discover = List(
        Unicode(),
        help="Host names with ports (HOST:PORT) whose addresses are services of nodes, such as a headless Kubernetes "
        "Service. The addresses are looked up every 30 s, and every program that responds there receives the token "
        "(default: none).",
    ).tag(config=True)

    token_file = Unicode(
        help="File with the token for requests to other nodes. It needs the scope custom:gpushare:read, and "
        "custom:gpushare:admin for actions (default: this service's own token, $JUPYTERHUB_API_TOKEN).",
    ).tag(config=True)

    interval = Float(
        2.0,
        help="Interval between requests to the nodes while the page is open, in seconds (default: 2).",
    ).tag(config=True)

    history = Int(
        100,
        help="Number of latest events to show for each node (default: 100).",
    ).tag(config=True)

    open_metrics = Bool(
        False,
        help="Serve /metrics, which contains user names, without a token. If False, a token with the scope "
        "read:metrics or custom:gpushare:read is required (default: False).",
    ).tag(config=True)

    @default("service_name")
    def _default_service_name(self) -> str:
        return os.environ.get("JUPYTERHUB_SERVICE_NAME") or "gpushare"

    @default("url")
    def _default_url(self) -> str:
        base = os.environ.get("JUPYTERHUB_SERVICE_URL") or f"http://127.0.0.1:{PORT}"
        prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX") or f"/services/{self.service_name}/"
        return base if urlsplit(base).path not in ("", "/") else base.rstrip("/") + prefix

    @default("node_name")
    def _default_node_name(self) -> str:
        return os.environ.get("GPUSHARE_NODE_NAME") or socket.gethostname()

    @validate("url")
    def _valid_url(self, proposal: dict[str, Any]) -> str:
        return _valid_url("url", proposal["value"])

    @validate("node_name")
    def _valid_node_name(self, proposal: dict[str, Any]) -> Any:
        return _valid_node("node_name", proposal["value"])

    @validate("nodes")
    def _valid_nodes(self, proposal: dict[str, Any]) -> dict[str, str]:
        return {
            _valid_node("nodes", name): _valid_url(f"nodes[{name!r}]", url)
            for name, url in proposal["value"].items()
        }

    @validate("discover")
    def _valid_discover(self, proposal: dict[str, Any]) -> list[str]:
        for address in proposal["value"]:
            host_and_port(address)
        return list(proposal["value"])

    @validate("socket")
    def _valid_socket(self, proposal: dict[str, Any]) -> Any:
        if trouble := too_long(proposal["value"], "GpuShareHub.socket"):
            raise TraitError(trouble)
        return proposal["value"]

    @validate("interval")
    def _valid_interval(self, proposal: dict[str, Any]) -> float:
        if not 0.1 <= proposal["value"] <= 60:
            raise TraitError(
                f"GpuShareHub.interval must be between 0.1 and 60 seconds, not {proposal['value']:g}"
            )
        return float(proposal["value"])

    @validate("history")
    def _valid_history(self, proposal: dict[str, Any]) -> int:
        if not 0 <= proposal["value"] <= 1000:
            raise TraitError(
                f"GpuShareHub.history must be between 0 and 1000, not {proposal['value']}"
            )
        return int(proposal["value"])

    @property
    def prefix(self) -> str:
        """The common path of all addresses, with a slash at both ends."""
        return urlsplit(self.url).path

    def path(self) -> Path:
        """Return the path of the node scheduler's socket."""
        return Path(self.socket).expanduser().absolute() if self.socket else socket_path()

    def token(self) -> str:
        """Return the token for other nodes.

        Raises
        ------
        ConfigurationError
            If the token cannot be read.
        """
        if not self.token_file:
            return os.environ.get("JUPYTERHUB_API_TOKEN", "")
        try:
            token = Path(self.token_file).expanduser().read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"cannot read the token file {self.token_file}: {getattr(error, 'strerror', None) or error}; correct "
                "GpuShareHub.token_file"
            ) from None
        if not token:
            raise ConfigurationError(
                f"the token file {self.token_file} is empty; write a Hub token into it"
            )
        return token


def load(file: str | None, given: Mapping[str, Any]) -> Config:
    """Return the configuration of a file, overridden by the command line.

    Parameters
    ----------
    file
        Path of a traitlets configuration, ``.py`` or ``.json``; None if there is no file.
    given
        Settings of `GpuShareHub` from the command line.

    Raises
    ------
    ConfigurationError
        If the file cannot be read.
    """
    config = Config()
    if file is not None:
        path = Path(file).expanduser().absolute()
        loader = JSONFileConfigLoader if path.suffix == ".json" else PyFileConfigLoader
        try:
            config = loader(path.name, path=str(path.parent)).load_config()
        except ConfigFileNotFound:
            raise ConfigurationError(
                f"configuration file {path} not found; correct the path after --config"
            ) from None
        except Exception as error:
            raise ConfigurationError(
                f"cannot read the configuration file {path}: {type(error).__name__}: {error}"
            ) from None
    for name, value in given.items():
        config.GpuShareHub[name] = value
    return config


def host_and_port(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT`` into its parts.

    Raises
    ------
    TraitError
        If the text does not have this form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise TraitError(
            f"invalid address {address!r}; use HOST:PORT, for example gpushare-hub.jhub.svc:{PORT}"
        )
    return host.strip("[]"), int(port)


def _valid_node(what: str, name: Any) -> str:
    if not (isinstance(name, str) and NODE.fullmatch(name)):
        raise TraitError(
            f"invalid node name {name!r} in GpuShareHub.{what}; use at most 63 letters, digits, '.', '_' and '-', "
            "beginning with a letter or a digit"
        )
    return name


def _valid_url(what: str, url: Any) -> str:
    parts = urlsplit(url if isinstance(url, str) else "")
    try:
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment:
        raise TraitError(
            f"invalid URL {url!r} in GpuShareHub.{what}; use for example http://gpu2:{PORT}/services/gpushare/"
        )
    return str(url).rstrip("/") + "/"
