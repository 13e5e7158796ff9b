# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's core in virtual time: traces in, waits and completion times out (docs/reference/simulation.md)."""
