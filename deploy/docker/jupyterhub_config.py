# SPDX-License-Identifier: BSD-3-Clause
"""For jupyterhub_config.py: the users' containers share this machine's GPUs (docs/how-to/admin/jupyterhub-docker.md).

This is for DockerSpawner. Containers of other engines need the same mounts and variables.
"""

c = get_config()  # type: ignore[name-defined] # noqa: F821

c.JupyterHub.spawner_class = "docker"
# An image with Jupyter and jupyter-gpushare.
c.DockerSpawner.image = "registry.example.org/notebook:1"
c.DockerSpawner.read_only_volumes = {
    # The folder and not the socket, because a new scheduler creates the socket again.
    "/run/gpushare": "/run/gpushare",
    # Made by `gpushare libraries`: libraries that match the scheduler, whatever version the image has.
    "/var/lib/gpushare-libraries": "/opt/gpushare/lib",
}
c.DockerSpawner.environment = {
    "GPUSHARE_SOCKET": "/run/gpushare/scheduler.sock",
    "GPUSHARE_LIBRARIES": "/opt/gpushare/lib",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
}
c.DockerSpawner.extra_host_config = {
    "device_requests": [{"count": -1, "capabilities": [["gpu"]]}],
    # One user's processes cannot use up the process numbers of the machine.
    "pids_limit": 4096,
    # A user who could change their uid would be another user to the scheduler.
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    # For frameworks that load data in several processes; gpushare does not need it.
    "shm_size": "8g",
}
# Evicted GPU memory counts as the container's memory.
c.DockerSpawner.mem_limit = "64G"
