# SPDX-License-Identifier: BSD-3-Clause
"""What benchmarks start in processes of their own."""
