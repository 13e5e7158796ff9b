# SPDX-License-Identifier: BSD-3-Clause
# Settings of this machine's scheduler, all optional: /etc/gpushare/gpushare.py. docs/reference/settings.md lists them.
#
#   systemctl reload gpushare     reads the shares again
#   systemctl restart gpushare    reads all settings; clients reconnect, and no data is lost
c = get_config()  # type: ignore[name-defined] # noqa: F821

# Users with accounts on this machine are identified by their uid. Users in containers may share one uid: their Jupyter
# servers log in with the Hub's tokens, and get a ticket for each kernel.
# c.NodeScheduler.shared_uids = [1000]
# c.NodeScheduler.hub_api_url = "http://127.0.0.1:8081/hub/api"
# c.NodeScheduler.allowed_groups = ["gpu-users"]

# Seconds of idleness after which a notebook is hibernated; 0: never. gpushare.service describes the capability for it.
# c.NodeScheduler.hibernate_after = 600

# Quotas of users and teams.
# c.NodeScheduler.shares = {
#     "user:*": {"limit": 0.5, "memory": "40GiB"},
#     "team:course": {"request": 0.25},
# }
