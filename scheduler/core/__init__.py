# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's core: events and a clock in, decisions out. It does no input or output."""
