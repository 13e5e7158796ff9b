# SPDX-License-Identifier: BSD-3-Clause
"""For jupyterhub_config.py: the users' containers share this machine's GPUs (docs/how-to/admin/jupyterhub.md).

It is for DockerSpawner. Containers of any other engine need the same mounts and variables.
"""

c = get_config()  # type: ignore[name-defined] # noqa: F821

c.JupyterHub.spawner_class = "docker"
# One that has jupyter-gpushare beside Jupyter.
c.DockerSpawner.image = "registry.example.org/notebook:1"
c.DockerSpawner.read_only_volumes = {
    # The folder and not the socket: the next scheduler makes the socket anew.
    "/run/gpushare": "/run/gpushare",
    # What `gpushare libraries` put there: they fit the scheduler, whatever version the image has.
    "/var/lib/gpushare-libraries": "/opt/gpushare/lib",
}
c.DockerSpawner.environment = {
    "GPUSHARE_SOCKET": "/run/gpushare/scheduler.sock",
    "GPUSHARE_LIBRARIES": "/opt/gpushare/lib",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
}
c.DockerSpawner.extra_host_config = {
    "device_requests": [{"count": -1, "capabilities": [["gpu"]]}],
    # What one user starts takes no process numbers from the others.
    "pids_limit": 4096,
    # Who can take another uid is another user to the scheduler.
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    # For frameworks that load data in several processes; we need none.
    "shm_size": "8g",
}
# GPU memory that was moved to the host counts as the container's.
c.DockerSpawner.mem_limit = "64G"
