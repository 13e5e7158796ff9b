# SPDX-License-Identifier: BSD-3-Clause
"""Prepared claims on a node's disk, and their specifications for the Container Device Interface (CDI)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec import ValidationError, convert

from ..plugin import CDI_KIND, LIBRARIES, SOCKETS
from .configuration import DRIVER

log = logging.getLogger(__name__)

#: The kind of our devices in the Container Device Interface: one for each GPU of a claim.
KIND = f"{DRIVER}/claim"
#: The oldest version of the interface with names that may begin with a digit.
CDI_VERSION = "0.5.0"
#: The folder of the claim's token inside containers.
CLAIM = Path("/run/gpushare-claim")
_TOKEN, _RECORD = "token", "claim.json"


class ClaimError(Exception):
    """A claim cannot be prepared. The message is one sentence, which the pod's events show."""


@dataclass(frozen=True, slots=True)
class AllocatedGpu:
    """A GPU of a claim, and the request that it fulfils."""

    request: str
    pool: str
    device: str
    uuid: str


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim, as it is recorded."""

    uid: str
    namespace: str
    name: str
    user: str
    gpus: tuple[AllocatedGpu, ...]
    priority: str | None
    shares: dict[str, int | float]


@dataclass(frozen=True, slots=True)
class Mounts:
    """What containers get from the node.

    Attributes
    ----------
    socket
        The node scheduler's socket.
    libraries
        The folder with the interposer.
    expose
        How containers get their GPUs.
    """

    socket: Path
    libraries: Path
    expose: Literal["env", "cdi"]


class PreparedClaims:
    """The record of prepared claims.

    Parameters
    ----------
    folder
        The folder of the record, which only root may enter.
    cdi
        The container runtime's folder for specifications.
    mounts
        What containers get.

    Raises
    ------
    OSError
        A folder cannot be used.
    """

    def __init__(self, folder: Path, cdi: Path, mounts: Mounts) -> None:
        self._folder = folder / "claims"
        self._cdi = cdi
        self._mounts = mounts
        self._claims: dict[str, PreparedClaim] = {}
        self._tokens: dict[str, str] = {}
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        cdi.mkdir(parents=True, exist_ok=True)
        self._load()

    def __iter__(self) -> Iterator[tuple[PreparedClaim, str]]:
        """Iterate over the claims, and the token of each."""
        return iter([(claim, self._tokens[uid]) for uid, claim in self._claims.items()])

    def get(self, uid: str) -> PreparedClaim | None:
        """Return a prepared claim."""
        return self._claims.get(uid)

    def add(self, claim: PreparedClaim) -> None:
        """Record a claim with a new token, completely or not at all.

        Raises
        ------
        OSError
            It cannot be written.
        """
        draft = self._folder / f".{claim.uid}"
        shutil.rmtree(draft, ignore_errors=True)
        (draft / _TOKEN).mkdir(parents=True)
        token = secrets.token_hex(32)
        (draft / _TOKEN / _TOKEN).write_text(token + "\n")
        (draft / _RECORD).write_text(json.dumps(asdict(claim)))
        # Containers of any user read them. On the node, only root may enter the folder of the record.
        (draft / _TOKEN).chmod(0o755)
        (draft / _TOKEN / _TOKEN).chmod(0o444)
        draft.replace(self._place(claim.uid))
        self._claims[claim.uid] = claim
        self._tokens[claim.uid] = token

    def specify(self, claim: PreparedClaim) -> None:
        """Write the specification of a claim, unless it is there.

        Raises
        ------
        OSError
            It cannot be written.
        """
        path, text = self._specification(claim.uid), json.dumps(self._specified(claim), indent=1)
        with contextlib.suppress(OSError):
            if path.read_text() == text:
                return
        draft = path.with_name(f".{path.name}.new")
        draft.write_text(text)
        draft.replace(path)

    def remove(self, uid: str) -> None:
        """Forget a claim; nothing happens if it is unknown.

        Raises
        ------
        OSError
            It cannot be deleted.
        """
        if not is_uid(uid):
            return
        self._specification(uid).unlink(missing_ok=True)
        place = self._place(uid)
        if place.exists():
            # A folder that is half deleted must not be taken for a claim.
            gone = place.with_name(f".{uid}.gone")
            shutil.rmtree(gone, ignore_errors=True)
            place.replace(gone)
            shutil.rmtree(gone)
        self._claims.pop(uid, None)
        self._tokens.pop(uid, None)

    def devices(self, claim: PreparedClaim) -> list[list[str]]:
        """Return the names in the Container Device Interface for each GPU of a claim.

        The first name of each GPU differs from those of the claim's other GPUs: the kubelet uses it as an identifier in
        the pod's status, where no identifier may appear twice.
        """
        own = [[f"{KIND}={name}"] for name in _device_names(claim)]
        if self._mounts.expose == "cdi":
            for names, gpu in zip(own, claim.gpus, strict=True):
                names.append(f"{CDI_KIND}={gpu.uuid}")
        return own

    def _load(self) -> None:
        for place in sorted(self._folder.iterdir()):
            if place.name.startswith("."):
                shutil.rmtree(place, ignore_errors=True)
                continue
            try:
                claim = convert(json.loads((place / _RECORD).read_text()), PreparedClaim)
                token = (place / _TOKEN / _TOKEN).read_text().strip()
                if claim.uid != place.name or not token:
                    raise ValueError("it is incomplete")
            except (OSError, ValueError, ValidationError) as error:
                # The kubelet asks again, and then the claim is read from the API.
                log.warning("deleted the record of claim %s (%s)", place.name, error)
                shutil.rmtree(place, ignore_errors=True)
                continue
            self._claims[claim.uid] = claim
            self._tokens[claim.uid] = token
        known = {self._specification(uid) for uid in self._claims}
        for path in {*self._cdi.glob(f"{DRIVER}-claim-*.json")} - known:
            path.unlink(missing_ok=True)

    def _place(self, uid: str) -> Path:
        return self._folder / uid

    def _specification(self, uid: str) -> Path:
        return self._cdi / f"{DRIVER}-claim-{uid}.json"

    def _specified(self, claim: PreparedClaim) -> dict[str, Any]:
        mounts = self._mounts
        uuids = ",".join(dict.fromkeys(gpu.uuid for gpu in claim.gpus))
        env = {
            "GPUSHARE_SOCKET": SOCKETS / mounts.socket.name,
            "GPUSHARE_LIBRARIES": LIBRARIES,
            "GPUSHARE_CLAIM_FILE": CLAIM / _TOKEN,
            # "void": NVIDIA's runtime adds no GPU, even if the image asks for some.
            "NVIDIA_VISIBLE_DEVICES": "void" if mounts.expose == "cdi" else uuids,
        }
        folders = {
            # The folder of the socket, because a new scheduler creates the socket again.
            SOCKETS: mounts.socket.parent,
            LIBRARIES: mounts.libraries,
            CLAIM: self._place(claim.uid) / _TOKEN,
        }
        edits = {
            "env": [f"{name}={value}" for name, value in env.items()],
            "mounts": [
                {
                    "hostPath": os.fspath(on_node),
                    "containerPath": os.fspath(inside),
                    "options": ["ro", "nosuid", "nodev", "bind"],
                }
                for inside, on_node in folders.items()
            ],
        }
        return {
            "cdiVersion": CDI_VERSION,
            "kind": KIND,
            # A container may use only some of the claim's GPUs. Each of them brings everything.
            "devices": [{"name": name, "containerEdits": edits} for name in _device_names(claim)],
        }


def _device_names(claim: PreparedClaim) -> list[str]:
    return [f"{claim.uid}-{number}" if number else claim.uid for number in range(len(claim.gpus))]


def is_uid(text: str) -> bool:
    """Whether a text can be the uid of an object; only such texts become names of files."""
    return re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9]{0,62}", text, re.ASCII) is not None
