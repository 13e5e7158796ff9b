# SPDX-License-Identifier: BSD-3-Clause
"""Information for administrators: counters, usage, recordings."""
