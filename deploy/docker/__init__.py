# SPDX-License-Identifier: BSD-3-Clause
"""Configuration for a JupyterHub whose users run in containers (docs/how-to/admin/jupyterhub-docker.md)."""
