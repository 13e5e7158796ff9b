# SPDX-License-Identifier: BSD-3-Clause
"""A hibernated kernel that has lost its scheduler, and no server starts another."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from tests.support.notebook import SETUP

from .conftest import eventually, started

Ask = Callable[..., dict[str, Any]]


async def test_a_hibernated_kernel_wakes_without_a_scheduler(scheduler: Ask) -> None:
    async with started() as kernel:
        assert (await kernel.execute(SETUP)).reply["status"] == "ok"
        scheduler("hibernate", group=kernel.manager.kernel_id)

        def hibernated() -> bool:
            return [g["state"] for g in scheduler("status")["status"]["groups"]] == ["hibernated"]

        await eventually(hibernated, "it is hibernated")
        os.kill(scheduler("status")["status"]["scheduler"]["pid"], signal.SIGTERM)
        result = await kernel.execute("data.read() == known")
        assert result.data() == {"text/plain": "True"}
        # And it goes on by itself.
        assert (await kernel.execute("data.read() == known")).data() == {"text/plain": "True"}
