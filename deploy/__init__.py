# SPDX-License-Identifier: BSD-3-Clause
"""What installs gpushare for many users: in containers, and on Kubernetes."""
