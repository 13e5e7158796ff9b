# SPDX-License-Identifier: BSD-3-Clause
"""Why a kernel does not share the GPU."""

import os


def what_is_missing() -> str:
    """Why there is no interposer in this process, and what to do."""
    reason = os.environ.get("GPUSHARE_ABSENT")
    if reason:
        return f"this kernel runs without the interposer: {reason}; `gpushare doctor` checks it"
    if "libgpushare" in os.environ.get("LD_PRELOAD", ""):
        return (
            "the interposer was not loaded though LD_PRELOAD names it; `gpushare doctor` checks it"
        )
    return (
        "this kernel does not share the GPU. Either no CUDA driver was found, or its front end (such as papermill, "
        "nbconvert or jupyter console) started it without jupyter-gpushare. To share the GPU in every front end, run "
        "`gpushare kernelspec add shared` and choose the kernelspec `shared`. `gpushare doctor` checks the rest."
    )
