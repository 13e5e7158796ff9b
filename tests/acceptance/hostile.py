# SPDX-License-Identifier: BSD-3-Clause
"""What a hostile user of the machine does with the scheduler's socket: run in that user's container.

`python -m tests.acceptance.hostile SOCKET NAME... -- ID...`: other users' notebooks and kernels. It attacks until
standard input ends, then prints one JSON object: how often each attack was tried, and the faults.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from jupyter_gpushare.scheduler.protocol.client import ControlClient, ControlError
from tests.support.client import Closed, FakeClient, Refused

#: A terminal's title, a bell, a line of its own, and text that runs backwards.
NAME = "\x1b]0;owned\x07\nroot holds all\u202e"
#: Connections that say nothing, and seconds between two rounds.
SILENT, PAUSE = 60, 0.2


class Attacker:
    """Attacks, and counts."""

    def __init__(self, path: Path, names: list[str], kernels: list[str]) -> None:
        self.path, self.names, self.kernels = path, names, kernels
        self.tried: Counter[str] = Counter()
        self.faults: list[str] = []
        self._chance = random.Random(1)

    def steal(self) -> None:
        """Attach as other users' kernels."""
        for kernel in self.kernels:
            self.tried["steal"] += 1
            with FakeClient(self.path, kernel) as client:
                try:
                    client.attach()
                except (Refused, Closed):
                    continue
                self.faults.append(f"attached as {kernel}")

    def steer(self) -> None:
        """Steer other users' kernels, and the machine."""
        requests = [
            (op, {"group": kernel, **more})
            for kernel in self.kernels
            for op, more in (
                ("release", {}),
                ("evict", {}),
                ("cancel", {}),
                ("ticket", {}),
                ("adjust", {"frozen": True}),
                ("hold", {"on": True}),
            )
        ]
        requests += [("set", {"quantum": 1}), ("drain", {"gpu": "0"}), ("audit", {})]
        for op, parameters in requests:
            self.tried["steer"] += 1
            try:
                with ControlClient(self.path) as control:
                    control.request(op, **parameters)
            except ControlError:
                continue
            self.faults.append(f"{op} {parameters} was allowed")

    def spy(self) -> None:
        """Look for other users' names."""
        self.tried["spy"] += 1
        with ControlClient(self.path) as control:
            told = json.dumps([control.request("status"), control.request("history")])
        self.faults += [f"was told {one}" for one in self.names + self.kernels if one in told]

    def flood(self) -> None:
        """Open many connections, and send noise."""
        with contextlib.ExitStack() as stack:
            for number in range(SILENT):
                self.tried["flood"] += 1
                peer = stack.enter_context(socket.socket(socket.AF_UNIX))
                peer.settimeout(1)
                with contextlib.suppress(OSError):
                    peer.connect(str(self.path))
                    if number % 2:
                        peer.sendall(self._chance.randbytes(200))

    def attack(self) -> None:
        """Do all of it once."""
        for action in (self.steal, self.steer, self.flood):
            with contextlib.suppress(OSError):
                action()
        # Its own flood may keep it from looking.
        with contextlib.suppress(ControlError, OSError):
            self.spy()


def main() -> None:
    """Attack until standard input ends."""
    path, *rest = sys.argv[1:]
    mark = rest.index("--")
    attacker = Attacker(Path(path), rest[:mark], rest[mark + 1 :])
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with FakeClient(Path(path), "hostile", name=NAME) as named:
        named.attach()
        print("ready", flush=True)
        while True:
            attacker.attack()
            if ended.is_set():
                break
            time.sleep(PAUSE)
    print(json.dumps({"tried": attacker.tried, "faults": attacker.faults}))


if __name__ == "__main__":
    main()
