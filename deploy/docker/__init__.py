# SPDX-License-Identifier: BSD-3-Clause
"""What a JupyterHub with containers on one machine needs (docs/how-to/admin/jupyterhub.md)."""
