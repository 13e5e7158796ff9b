# SPDX-License-Identifier: BSD-3-Clause
"""What the fault of a GPU means for the taint of its device, and for its health in the status of pods. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..node import Fault
from .configuration import DRIVER


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a GPU.

    Attributes
    ----------
    health
        What the kubelet reports in the status of the GPU's pods.
    explanation
        What is wrong and what follows from it, for users of these pods; `{gpu}` stands for the GPU.
    """

    health: Literal["HEALTHY", "UNHEALTHY", "UNKNOWN"]
    explanation: str

    def message(self, gpu: str) -> str:
        """Return the explanation for one GPU."""
        return self.explanation.format(gpu=gpu)


CONDITIONS: dict[Fault, Condition] = {
    "": Condition("HEALTHY", ""),
    "drained": Condition(
        "UNHEALTHY",
        "An administrator has drained {gpu}. Programs get no time on this GPU until the drain ends.",
    ),
    "failed": Condition(
        "UNHEALTHY",
        "NVML cannot read {gpu}. Programs that use it are likely to fail. Ask an administrator to check the node.",
    ),
    "no-scheduler": Condition(
        "UNHEALTHY",
        "The node's gpushare scheduler does not respond. Programs that have {gpu} continue, and others wait for the "
        "scheduler.",
    ),
    "unchecked": Condition(
        "UNKNOWN",
        "NVML does not respond, so the state of {gpu} is not known. Ask an administrator to check the node.",
    ),
}


def taints(fault: Fault) -> list[dict[str, Any]]:
    """Return the taints of a device: one, if its GPU has a fault.

    The effect is never NoExecute, which would end the Jupyter kernels of running pods.
    """
    return [{"key": f"{DRIVER}/{fault}", "effect": "NoSchedule"}] if fault else []
