# SPDX-License-Identifier: BSD-3-Clause
"""Questions that were asked of the driver or the scheduler once, and can be asked again."""
