# SPDX-License-Identifier: BSD-3-Clause
"""Why a process does not hibernate: the codes that the core, the checkpoint helper and the status share."""

#: Why a process, or any process, does not hibernate: a sentence for each code in the status and in events.
WHY = {
    "off": "hibernation is turned off, or the notebook is kept on the GPU",
    "driver": "the driver cannot checkpoint processes",
    "helper": "the hibernator, the helper process that checkpoints notebooks, is not running",
    "permission": "the scheduler lacks permission to checkpoint the process; an administrator can grant it",
    "container": "its process runs in a container that the scheduler cannot reach; an administrator can install the "
    "privileged hibernator",
    "descriptors": "the scheduler has no free file descriptors",
    "debugger": "a debugger is attached to its process",
    "busy": "its process was in the middle of a driver call",
    "capture": "its process is capturing a CUDA graph",
    "gpus": "its process uses several GPUs",
    "nccl": "its process may have NCCL communicators, which the driver cannot checkpoint",
    "ipc": "its process shares GPU memory with other processes, which the driver cannot checkpoint",
    "managed": "its process has managed memory, which the driver cannot checkpoint",
    "unevictable": "its process holds too much unevictable memory",
    "plain": "its memory cannot be evicted with the backend plain",
    "failed": "the driver could not checkpoint or restore its process",
    "stuck": "its hibernation is taking longer than expected",
}
#: With these codes, the process may be checkpointed or be about to be. With all others, it is not checkpointed.
UNSETTLED = frozenset({"stuck", "helper"})
#: The code of a wake before which the GPU had no room. The process is hibernated as before, and waits for room.
NO_ROOM = "room"
#: Codes of the helper that leave the state of a process open.
INCONCLUSIVE = frozenset({"helper", "permission"})


def as_said(text: str) -> str:
    """Return the error of a call whose process cannot be woken now."""
    return (
        f"this kernel is hibernated and cannot be woken now ({text}). Its data is safe in host memory, "
        "and the next CUDA call tries again"
    )
