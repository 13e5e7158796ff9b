# SPDX-License-Identifier: BSD-3-Clause
"""Why a process is not hibernated: the codes that the core, the hibernator and the scheduler's status share."""

#: Why a process, or none at all, is hibernated: a sentence for each code that status and events may have.
WHY = {
    "off": "hibernation is switched off, or the notebook keeps its place on the GPU",
    "driver": "the driver cannot checkpoint processes",
    "helper": "the hibernator, which asks the driver to checkpoint processes, does not run",
    "permission": "the scheduler has no permission to reach into the process; its administrator can give it that",
    "container": "its process is in another container than the scheduler",
    "debugger": "a debugger is attached to its process",
    "busy": "its process was at work in the driver",
    "capture": "its process captures a CUDA graph",
    "gpus": "its process uses several GPUs",
    "nccl": "its process may have NCCL communicators, which the driver cannot checkpoint",
    "ipc": "its process shares GPU memory with other processes, which the driver cannot checkpoint",
    "managed": "its process has managed memory, which the driver cannot checkpoint",
    "pinned": "its process holds much memory that cannot be moved out first",
    "plain": "its memory is not moved out by us first",
    "failed": "the driver failed at it",
    "stuck": "its hibernation does not end",
}
#: A process of which the hibernator says so may be checkpointed, or be about to; of others, it says that they are not.
UNSETTLED = frozenset({"stuck", "helper"})
#: The hibernator's codes that leave open how a process is.
INCONCLUSIVE = frozenset({"helper", "permission"})


def as_said(text: str) -> str:
    """Return the error of a call whose process cannot be woken now."""
    return (
        f"the kernel is hibernated and cannot be woken now ({text}); its data is safe in host memory, "
        "and the next call tries again"
    )
