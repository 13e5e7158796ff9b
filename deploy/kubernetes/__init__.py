# SPDX-License-Identifier: BSD-3-Clause
"""A device plugin that offers slots of GPUs, and its manifests (docs/how-to/admin/kubernetes.md)."""
