# SPDX-License-Identifier: BSD-3-Clause
"""The wire protocol, and the clients that speak it."""
