# SPDX-License-Identifier: BSD-3-Clause
"""Notebooks that use the GPU for real, and say whether their results are right."""

from __future__ import annotations

#: Takes three quarters of the GPU's memory.
ALLOCATE = """\
import os
import numpy
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, launch

SOURCE = '__global__ void step(float *x) { x[blockIdx.x] += 1; }'
BLOCKS = 2_000
device = Device()
device.set_current()
stream = device.create_stream()
compiled = Program(SOURCE, "c++").compile("cubin", name_expressions=["step"])
step, grid = compiled.get_kernel("step"), LaunchConfig(grid=BLOCKS, block=1)
_, free, total = driver.cuMemGetInfo()
data = device.allocate(total * 3 // 4, stream=stream)
driver.cuMemsetD32Async(int(data.handle), 0, data.size // 4, stream.handle)
stream.sync()
done = 0
"""

#: Has always something to do on the GPU, however busy the machine is: an idle GPU is given to a waiting program.
TRAIN = """\
steps = []
while not os.path.exists("stop"):
    launch(stream, grid, step, data)
    done += 1
    steps.append(stream.record())
    if len(steps) > 300:
        steps.pop(0).sync()
"""

PLOT = """\
launch(stream, grid, step, data)
done += 1
"""

#: Each block has added one to its number, and to no other's, as often as it ran.
CHECK = """\
stream.sync()
found = numpy.empty(data.size // 4, numpy.float32)
driver.cuMemcpyDtoH(found.ctypes.data, int(data.handle), found.nbytes)
assert done and (found[:BLOCKS] == done).all() and not found[BLOCKS:].any()
print("as if alone")
"""
