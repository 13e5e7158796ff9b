# SPDX-License-Identifier: BSD-3-Clause
"""Why a kernel does not share the GPU."""

import os


def what_is_missing() -> str:
    """Why there is no interposer in this process, and what to do."""
    reason = os.environ.get("GPUSHARE_ABSENT")
    if reason:
        return f"this kernel runs without the interposer: {reason}; run `gpushare doctor`"
    if "libgpushare" in os.environ.get("LD_PRELOAD", ""):
        return "LD_PRELOAD lists the interposer, but it was not loaded; run `gpushare doctor`"
    return (
        "this kernel does not share the GPU. Either no CUDA driver was found, or its front end (such as papermill, "
        "nbconvert or jupyter console) started it without jupyter-gpushare. To share the GPU in every front end, run "
        "`gpushare kernelspec add shared` and choose the kernelspec `shared`. If that does not help, run "
        "`gpushare doctor`."
    )
