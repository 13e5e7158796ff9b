# SPDX-License-Identifier: BSD-3-Clause
"""What the scheduler of each node does (docs/how-to/admin/workstation.md has all settings)."""

c = get_config()  # type: ignore[name-defined] # noqa: F821

# The pods that it serves have the folder, and nothing else does.
c.NodeScheduler.socket = "/run/gpushare/scheduler.sock"
c.NodeScheduler.socket_mode = "0666"
# Tickets of kernels outlive the scheduler's pod.
c.NodeScheduler.state_dir = "/var/lib/gpushare/state"

# All users' pods run as 1000: whose their servers are, the Hub says. Zero to JupyterHub's, in the namespace jhub.
c.NodeScheduler.shared_uids = [1000]
c.NodeScheduler.hub_api_url = "http://hub.jhub.svc:8081/hub/api"

# Processes in other pods cannot be hibernated: nothing is tried.
c.NodeScheduler.hibernate_after = 0

# docs/explanation/scheduling.md, "Policies".
c.NodeScheduler.policy = "burst"
# What users may have of the GPUs (docs/how-to/admin/administration.md).
c.NodeScheduler.shares = {}
