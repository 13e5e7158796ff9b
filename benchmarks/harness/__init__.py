# SPDX-License-Identifier: BSD-3-Clause
"""What benchmarks are made of: the machine, its clients, and how figures are printed."""
