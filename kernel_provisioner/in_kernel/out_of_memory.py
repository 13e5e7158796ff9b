# SPDX-License-Identifier: BSD-3-Clause
"""What a kernel that does not share the GPU says when the GPU has no memory left."""

import re
import sys
from typing import Any

from .faults import guarded

#: What CUDA libraries raise where the GPU has no memory left.
OUT_OF_MEMORY = (
    r"CUDA.{0,40}out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|RESOURCE_EXHAUSTED"
    r"|(torch|cupy)\S*OutOfMemoryError|ResourceExhaustedError"
)


class OutOfMemoryHint:
    """Explains why the GPU has no memory left for a kernel that does not share it."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._hook = guarded(self._post_run_cell)

    def install(self) -> None:
        """Look at each cell's error from now on."""
        self._shell.events.register("post_run_cell", self._hook)

    def remove(self) -> None:
        """Stop looking."""
        self._shell.events.unregister("post_run_cell", self._hook)

    def _post_run_cell(self, result: Any) -> None:
        error = result.error_in_exec
        if error is None:
            return
        kind = type(error)
        said = f"{kind.__module__}.{kind.__name__}: {error}"
        # Compiled at the first error: that takes longer than the rest of a kernel's start with us.
        if re.search(OUT_OF_MEMORY, said, re.IGNORECASE | re.DOTALL):
            sys.stderr.write(
                "gpushare: this kernel does not share the GPU, so it cannot use GPU memory that idle notebooks hold. "
                "Run %gpushare to see how to share it.\n"
            )
