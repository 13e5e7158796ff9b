# SPDX-License-Identifier: BSD-3-Clause
# The scheduler of this machine: /etc/gpushare/gpushare.py. workstation.md has all settings; none has to be set.
#
#   systemctl reload gpushare     takes new shares in
#   systemctl restart gpushare    takes all in; no client loses its connection for good, and none a byte
c = get_config()  # type: ignore[name-defined] # noqa: F821

# Who is who. Users of this machine are known by their uid. In containers, where several people have the same, their
# Jupyter servers log in with their Hub's tokens, and get a ticket for each kernel.
# c.NodeScheduler.shared_uids = [1000]
# c.NodeScheduler.hub_api_url = "http://127.0.0.1:8081/hub/api"
# c.NodeScheduler.allowed_groups = ["gpu-users"]

# Seconds after which an idle notebook is hibernated, 0: none is. It takes a capability: gpushare.service says which.
# c.NodeScheduler.hibernate_after = 600

# What they may have of the GPUs.
# c.NodeScheduler.shares = {
#     "user:*": {"limit": 0.5, "memory": "40GiB"},
#     "team:course": {"request": 0.25},
# }
