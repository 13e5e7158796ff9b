# SPDX-License-Identifier: BSD-3-Clause
"""Settings of the scheduler of each node (docs/reference/settings.md lists all)."""

c = get_config()  # type: ignore[name-defined] # noqa: F821

# Only the pods that this scheduler serves mount the socket's folder.
c.NodeScheduler.socket = "/run/gpushare/scheduler.sock"
c.NodeScheduler.socket_mode = "0666"
# Tickets of kernels survive a restart of the scheduler's pod.
c.NodeScheduler.state_dir = "/var/lib/gpushare/state"

# All users' pods run as uid 1000, so the Hub identifies the users: Zero to JupyterHub in the namespace jhub.
c.NodeScheduler.shared_uids = [1000]
c.NodeScheduler.hub_api_url = "http://hub.jhub.svc:8081/hub/api"

# Seconds after which idle notebooks are hibernated; 0: never. To use it, install the privileged hibernators
# (docs/how-to/admin/hibernation.md).
c.NodeScheduler.hibernate_after = 0
c.NodeScheduler.hibernator_socket = "/run/gpushare-hibernator/hibernator.sock"

# docs/explanation/scheduling.md describes the policies.
c.NodeScheduler.policy = "burst"
# Quotas of users and teams (docs/how-to/admin/quotas.md).
c.NodeScheduler.shares = {}
