# SPDX-License-Identifier: BSD-3-Clause
"""Measurements: ``gpushare bench`` runs those whose figures we publish."""
