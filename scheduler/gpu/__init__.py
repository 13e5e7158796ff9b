# SPDX-License-Identifier: BSD-3-Clause
"""What the scheduler learns of GPUs and drivers, and the helper that checkpoints processes."""
