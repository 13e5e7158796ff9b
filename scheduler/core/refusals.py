# SPDX-License-Identifier: BSD-3-Clause
"""Why a process does not hibernate: the codes that the core, the checkpoint helper and the status share."""

#: Why a process, or any process, does not hibernate: a sentence for each code in the status and in events.
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
    "unevictable": "its process holds much memory that cannot be moved out first",
    "plain": "its memory is not moved out by us first",
    "failed": "the driver failed at it",
    "stuck": "its hibernation does not end",
}
#: With these codes, the process may be checkpointed or be about to be. With all others, it is not checkpointed.
UNSETTLED = frozenset({"stuck", "helper"})
#: Codes of the helper that leave the state of a process open.
INCONCLUSIVE = frozenset({"helper", "permission"})


def as_said(text: str) -> str:
    """Return the error of a call whose process cannot be woken now."""
    return (
        f"the kernel is hibernated and cannot be woken now ({text}); its data is safe in host memory, "
        "and the next call tries again"
    )
