# SPDX-License-Identifier: BSD-3-Clause
"""What installs gpushare for many users: on Kubernetes so far."""
