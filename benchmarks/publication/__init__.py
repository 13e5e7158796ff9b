# SPDX-License-Identifier: BSD-3-Clause
"""Many benchmarks at once, and the tables of their figures: ``gpushare bench --publish``."""
