# SPDX-License-Identifier: BSD-3-Clause
"""The figures that we publish; ``gpushare bench`` runs them. One file a benchmark."""
