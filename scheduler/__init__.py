# SPDX-License-Identifier: BSD-3-Clause
"""The burst scheduler: a sans-IO core, its policies, and the process around it."""
