# SPDX-License-Identifier: BSD-3-Clause
"""The Hub service: all nodes on one page, for administrators and for people who wait (``hub-page.md``)."""
