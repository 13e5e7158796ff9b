# SPDX-License-Identifier: BSD-3-Clause
"""A device plugin that offers shares of GPUs, and the manifests for it (docs/how-to/admin/kubernetes.md)."""
