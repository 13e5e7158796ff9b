# SPDX-License-Identifier: BSD-3-Clause
"""Information about GPUs and drivers, and the helper that checkpoints processes."""
