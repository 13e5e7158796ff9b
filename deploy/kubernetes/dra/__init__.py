# SPDX-License-Identifier: BSD-3-Clause
"""A driver for Dynamic Resource Allocation, which shares GPUs among claims (docs/contributing/dra-driver.md)."""
