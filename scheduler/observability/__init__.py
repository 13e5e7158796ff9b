# SPDX-License-Identifier: BSD-3-Clause
"""What is told to administrators: counters, usage, recordings."""
