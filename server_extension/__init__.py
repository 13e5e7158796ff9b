# SPDX-License-Identifier: BSD-3-Clause
"""The Jupyter server extension: hosts the scheduler, watches cells, serves the queue's state."""
