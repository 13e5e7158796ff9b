# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path

import jupyter_gpushare


def test_one_version_everywhere(root: Path) -> None:
    package = json.loads((root / "labextension" / "package.json").read_text())
    assert package["version"] == jupyter_gpushare.__version__ == version("jupyter-gpushare")


def test_the_changelog_has_the_version(root: Path) -> None:
    headings = re.findall(r"^## \[?(\d\S*?)\]? ", (root / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == jupyter_gpushare.__version__


def test_locks_name_no_registry(root: Path) -> None:
    """Each machine takes packages from the registry that it is set up for."""
    pins = sorted(str(path.relative_to(root)) for path in (root / "requirements").iterdir())
    assert len(pins) == 5
    for lock in (*pins, "labextension/yarn.lock", "tests/hub/yarn.lock"):
        text = (root / lock).read_text()
        assert text.strip(), lock
        assert "://" not in text, lock


def test_pins_are_exact(root: Path) -> None:
    for lock in (root / "requirements").iterdir():
        for line in lock.read_text().splitlines():
            assert re.match(r"[A-Za-z0-9._-]+==[^ ]+( ;|$)", line), line
