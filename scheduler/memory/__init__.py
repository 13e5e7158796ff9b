# SPDX-License-Identifier: BSD-3-Clause
"""Host memory for swapped data: its budget, and the pool that clients take it from."""
