# SPDX-License-Identifier: BSD-3-Clause
"""Commands that let any program or front end share the GPU."""
