# SPDX-License-Identifier: BSD-3-Clause
"""Commands that show what the GPUs are used for, and why."""
