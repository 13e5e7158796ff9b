# SPDX-License-Identifier: BSD-3-Clause
"""The host's memory: how much may be used, and the pool that clients borrow from."""
