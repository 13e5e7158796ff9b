# SPDX-License-Identifier: BSD-3-Clause
"""The process: connections, requests, administration."""
