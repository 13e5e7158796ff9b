# SPDX-License-Identifier: BSD-3-Clause
"""The wheel of this checkout works in a new environment without compiler and Node.js. The other tests are slow."""

from __future__ import annotations

from pathlib import Path

from tests.packaging.conftest import Build, Fresh


def test_an_installed_wheel_shares_a_gpu(root: Path, build: Build, bare: Fresh) -> None:
    # From the checkout, so that files that were compiled for an earlier run are not compiled again.
    wheel = build(root, "--wheel")
    bare.run("python", "-m", "pip", "install", "--no-index", str(wheel))
    said = bare.run("python", str(root / "tests" / "packaging" / "smoke.py"))
    assert said.endswith("smoke test passed\n")
