# SPDX-License-Identifier: BSD-3-Clause
"""Files that install gpushare for many users: as a service, in containers, and on Kubernetes."""
