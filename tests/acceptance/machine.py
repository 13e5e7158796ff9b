# SPDX-License-Identifier: BSD-3-Clause
"""A machine with systemd as its first process, and with users of its own.

It is a container of systemd-nspawn. Its files are those of this machine; what it changes lies in memory and is gone
when the machine is. So services are installed and users are added as on a real machine, and nothing of that is left.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.lab import PATIENCE

#: Where docs/how-to/admin/workstation.md installs jupyter-gpushare.
INSTALLED = Path("/opt/gpushare")

#: Mounts are made in a namespace that ends with the machine. The last line becomes the machine.
BOOT = """
set -e
folder=$1; shift
mount -t tmpfs -o mode=755 machine "$folder"
mkdir "$folder/changes" "$folder/work" "$folder/root"
mount -t overlay -o "lowerdir=/,upperdir=$folder/changes,workdir=$folder/work" machine "$folder/root"
exec systemd-nspawn --directory="$folder/root" "$@"
"""


class CannotBoot(Exception):
    """No such machine can run here; the message says why."""


class Machine:
    """The machine; it is switched off at the end of the ``with`` block.

    Parameters
    ----------
    folder
        Where its files shall lie; nothing is there yet.
    root
        The repository. What is installed in the environment that runs the tests is what the machine has in
        `INSTALLED`.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._root = root
        self._log = folder.with_name(f"{folder.name}.log")
        self._leader = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Machine:
        if os.geteuid() != 0:
            raise CannotBoot("only root can boot a machine")
        for program in ("systemd-nspawn", "nsenter", "setpriv", "useradd"):
            if shutil.which(program) is None:
                raise CannotBoot(
                    f"{program} is missing (Debian: apt-get install systemd-container)"
                )
        # PrivateTmp= of the services hides what is there.
        if self._root.is_relative_to("/tmp") or Path(sys.prefix).is_relative_to("/tmp"):
            raise CannotBoot(
                "the services cannot run a checkout in /tmp, because they have another /tmp"
            )
        options = [
            *("--quiet", "--boot", "--console=pipe", "--link-journal=no", "--register=no"),
            *(f"--machine=gpushare-{uuid.uuid4().hex[:8]}", f"--uuid={uuid.uuid4().hex}"),
            # These may be on other file systems than the rest.
            *(f"--bind-ro={path}" for path in (self._root, sys.prefix, sys.base_prefix)),
        ]
        if not Path("/run/systemd/system").is_dir():
            options.append("--keep-unit")
        self._folder.mkdir()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    # The machine does not outlive the tests, however they end.
                    *("setpriv", "--pdeathsig=TERM", "unshare", "--mount"),
                    *("sh", "-c", BOOT, "sh", str(self._folder), *options),
                    "systemd.unit=basic.target",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_for_boot(self._process)
            self._install()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _wait_for_boot(self, process: subprocess.Popen[bytes]) -> None:
        children = Path("/proc", str(process.pid), "task", str(process.pid), "children")
        deadline = time.monotonic() + PATIENCE
        while True:
            if process.poll() is not None:
                raise CannotBoot(f"systemd-nspawn failed: {self._log.read_text().strip()}")
            if time.monotonic() > deadline:
                raise CannotBoot(f"systemd does not start: {self._log.read_text().strip()}")
            for pid in map(int, children.read_text().split()):
                self._leader = pid
                done = self.attempt("systemctl", "is-system-running", "--wait")
                # Degraded: a unit failed that has nothing to do with us.
                if done.stdout.strip() in ("running", "degraded"):
                    return
            time.sleep(0.1)

    def _install(self) -> None:
        self.run("ln", "-s", sys.prefix, str(INSTALLED))
        # Other users must reach the interpreter.
        for place in (Path(sys.executable), Path(sys.executable).resolve(), self._root / "any"):
            for folder in place.parents:
                if not folder.stat().st_mode & stat.S_IXOTH:
                    self.run("chmod", "o+x", str(folder))

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        # systemd-nspawn powers the machine off.
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PATIENCE)

    def command(self, *command: str, user: str = "root") -> list[str]:
        """Return a command of this machine that runs a command on that one, as one of its users."""
        return [
            *("nsenter", f"--target={self._leader}", "--mount", "--pid", "--uts", "--ipc"),
            *("--cgroup", "--root", "--wd", "env", "-i", f"PATH={os.environ['PATH']}"),
            *(["HOME=/root"] if user == "root" else ["runuser", f"--user={user}", "--"]),
            *command,
        ]

    def attempt(
        self, *command: str, user: str = "root", **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine."""
        return subprocess.run(
            self.command(*command, user=user),
            capture_output=True,
            text=True,
            check=False,
            timeout=2 * PATIENCE,
            **options,
        )

    def run(self, *command: str, user: str = "root", **options: Any) -> str:
        """Run a command on the machine that has to succeed, and return what it prints."""
        done = self.attempt(*command, user=user, **options)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """Write a file on the machine."""
        self.run("sh", "-c", 'mkdir -p "$(dirname "$1")" && cat > "$1"', "sh", path, input=text)

    def journal(self, unit: str) -> str:
        """Return what a service has logged."""
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit", unit)

    def property(self, unit: str, name: str) -> str:
        """Return a property of a service."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def add_users(self, passwords: dict[str, str]) -> None:
        """Add users, who may sign in with these passwords."""
        for user in passwords:
            self.run("useradd", "--create-home", "--shell", "/bin/bash", user)
        lines = "".join(f"{user}:{password}\n" for user, password in passwords.items())
        self.run("chpasswd", input=lines)
        # It is part of multi-user.target. Before it, PAM lets root alone sign in.
        self.run("systemctl", "start", "systemd-user-sessions.service")


def documented(page: Path, heading: str) -> Sequence[str]:
    """Return the shell commands of a section of the documentation, one text for each block."""
    text = page.read_text().partition(f"# {heading}\n")[2]
    assert text, f"{page.name} has no section {heading!r}"
    return re.findall(r"^```sh\n(.*?)^```", re.split(r"^#+ ", text, flags=re.M)[0], re.M | re.S)
