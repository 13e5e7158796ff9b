# SPDX-License-Identifier: BSD-3-Clause
"""The Hub service: a page with all nodes' GPUs and notebooks (docs/how-to/admin/hub-page.md)."""
