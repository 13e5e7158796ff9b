# SPDX-License-Identifier: BSD-3-Clause
"""Commands that control notebooks and programs, and how GPUs are shared."""
