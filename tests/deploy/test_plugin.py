# SPDX-License-Identifier: BSD-3-Clause
"""The device plugin's process, before a stand-in for the kubelet and beside a real scheduler."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_gpushare import LIBRARIES
from jupyter_gpushare.scheduler.gpu.drivers import libraries
from tests.deploy.conftest import Kubelet, Plugin
from tests.support.devices import readings
from tests.support.scheduler import Start

Kubelets = Callable[..., Kubelet]
Plugins = Callable[..., Plugin]

RESOURCE = "jupyter-gpushare/gpu-slot"
ENDPOINT = "jupyter-gpushare_gpu-slot.sock"


def gpu(slot: str) -> str:
    return slot.partition("::")[0]


def health(devices: dict[str, str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for slot, state in devices.items():
        found.setdefault(gpu(slot), set()).add(state)
    return found


def test_a_container_gets_slots_of_a_gpu_and_the_scheduler_socket(
    start: Start, kubelets: Kubelets, plugins: Plugins, environ: dict[str, str], node: Path
) -> None:
    start(GPUSHARE_SIM_DEVICES="2")
    kubelet = kubelets()
    plugin = plugins("--slots-per-gpu", "3")
    assert kubelet.until("registered") == {
        "version": "v1beta1",
        "endpoint": ENDPOINT,
        "resource_name": RESOURCE,
        "options": {"get_preferred_allocation_available": True},
    }
    assert kubelet.until("options") == {"get_preferred_allocation_available": True}
    devices = kubelet.until("devices")
    assert set(devices.values()) == {"Healthy"}
    first, second = dict.fromkeys(map(gpu, devices))
    assert [gpu(slot) for slot in devices] == [first] * 3 + [second] * 3
    assert all(len(slot) <= 63 for slot in devices)

    answer = kubelet.call(
        "GetPreferredAllocation",
        container_requests=[
            {"available_deviceIDs": [*devices][1:], "allocation_size": 2},
            {
                "available_deviceIDs": [*devices],
                "must_include_deviceIDs": [f"{first}::2"],
                "allocation_size": 2,
            },
        ],
    )
    chosen = [container["deviceIDs"] for container in answer["container_responses"]]
    assert [[gpu(slot) for slot in slots] for slots in chosen] == [[second] * 2, [first] * 2]
    assert f"{first}::2" in chosen[1]

    answer = kubelet.call(
        "Allocate", container_requests=[{"devices_ids": chosen[0]}, {"devices_ids": [*devices]}]
    )
    one, both = answer["container_responses"]
    assert one == {
        "envs": {
            "GPUSHARE_SOCKET": "/run/gpushare/s.sock",
            "GPUSHARE_LIBRARIES": "/opt/gpushare/lib",
            "NVIDIA_VISIBLE_DEVICES": second,
        },
        "mounts": [
            {
                "container_path": "/run/gpushare",
                "host_path": str(Path(environ["GPUSHARE_SOCKET"]).parent),
                "read_only": True,
            },
            {
                "container_path": "/opt/gpushare/lib",
                "host_path": str(LIBRARIES.resolve()),
                "read_only": True,
            },
        ],
    }
    assert both["envs"]["NVIDIA_VISIBLE_DEVICES"] == f"{first},{second}"
    assert kubelet.call("PreStartContainer", devices_ids=chosen[0]) == {}

    for slot in (f"{first}::3", first, "GPU-none::0"):
        refused = kubelet.call("Allocate", container_requests=[{"devices_ids": [slot]}])
        assert refused == {"error": f"INVALID_ARGUMENT: {slot!r} is not a slot of this node"}

    endpoint = node / ENDPOINT
    assert endpoint.is_socket()
    assert plugin.close() == 0
    kubelet.until("gone")
    assert not endpoint.exists()
    assert (node / "kubelet.sock").is_socket()


def test_gpus_may_be_named_to_the_container_device_interface(
    start: Start, kubelets: Kubelets, plugins: Plugins, tmp_path: Path
) -> None:
    start(GPUSHARE_SIM_DEVICES="2")
    kubelet = kubelets()
    plugins(
        "--expose", "cdi", "--resource", "example.org/gpu", "--library-dir", str(tmp_path / "l")
    )
    assert kubelet.until("registered")["resource_name"] == "example.org/gpu"
    slot = next(iter(kubelet.until("devices")))
    answer = kubelet.call("Allocate", container_requests=[{"devices_ids": [slot]}])
    (container,) = answer["container_responses"]
    assert container["cdi_devices"] == [{"name": f"nvidia.com/gpu={gpu(slot)}"}]
    assert container["envs"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert container["mounts"][1]["host_path"] == str(tmp_path / "l")
    found = libraries()
    assert {path.name: path.read_bytes() for path in (tmp_path / "l").iterdir()} == {
        path.name: path.read_bytes() for path in (*found.preload(), found.hibernator)
    }


def test_a_lost_gpu_or_scheduler_and_its_return_are_reported(
    start: Start, kubelets: Kubelets, plugins: Plugins, losing_nvml: dict[str, str]
) -> None:
    lost = Path(losing_nvml["LOST_GPUS"])
    lost.unlink(missing_ok=True)
    kubelet = kubelets()
    plugins(**losing_nvml)
    devices = kubelet.until("devices")
    slots = [*devices]
    first, second = health(devices)

    def told(*states: str) -> None:
        expected = {slot: states[gpu(slot) == second] for slot in slots}
        kubelet.until("devices", expected)

    assert health(devices) == {first: {"Unhealthy"}, second: {"Unhealthy"}}
    scheduler = start(GPUSHARE_SIM_DEVICES="2")
    told("Healthy", "Healthy")
    lost.write_text("0")
    told("Unhealthy", "Healthy")
    lost.write_text("01")
    told("Unhealthy", "Unhealthy")
    lost.write_text("1")
    told("Healthy", "Unhealthy")
    lost.write_text("r")
    told("Unhealthy", "Unhealthy")
    lost.unlink()
    told("Healthy", "Healthy")
    scheduler.kill()
    told("Unhealthy", "Unhealthy")
    start(GPUSHARE_SIM_DEVICES="2")
    told("Healthy", "Healthy")


def test_the_plugin_registers_with_each_new_kubelet(
    start: Start, kubelets: Kubelets, plugins: Plugins, node: Path
) -> None:
    start(GPUSHARE_SIM_DEVICES="2")
    # What a plugin that was killed leaves behind.
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(node / ENDPOINT))
    plugin = plugins()
    plugin.until(f"no kubelet is listening at {node}/kubelet.sock yet")
    kubelet = kubelets(refuse=1)
    kubelet.until("refused")
    kubelet.until("registered")
    slots: dict[str, Any] = kubelet.until("devices")
    assert f"the kubelet did not register {RESOURCE}: the name is taken" in plugin.log
    for _ in range(2):
        kubelet = kubelets()
        assert kubelet.until("registered")["resource_name"] == RESOURCE
        assert kubelet.until("devices") == slots
    assert plugin.close() == 0
    assert [path.name for path in node.iterdir()] == ["kubelet.sock"]


def test_a_lost_gpu_hides_no_other(environ: dict[str, str], losing_nvml: dict[str, str]) -> None:
    lost = Path(losing_nvml["LOST_GPUS"])
    lost.write_text("0")
    try:
        seen = readings(
            {**environ, **losing_nvml, "GPUSHARE_SIM_DEVICES": "2"}, losing_nvml["GPUSHARE_NVML"]
        )
    finally:
        lost.unlink()
    found = seen["found"]
    assert isinstance(found, list)
    assert [gpu["index"] for gpu in found] == [1]


def test_a_drained_gpu_is_not_offered_until_it_is_back(
    start: Start, kubelets: Kubelets, plugins: Plugins
) -> None:
    scheduler = start(GPUSHARE_SIM_DEVICES="2")
    kubelet = kubelets()
    plugins()
    devices = kubelet.until("devices")
    first, second = health(devices)
    assert health(devices) == {first: {"Healthy"}, second: {"Healthy"}}
    for drained, state in ((True, "Unhealthy"), (False, "Healthy")):
        with scheduler.control() as control:
            control.request("drain", gpu=first, on=drained)
        expected = {slot: state if gpu(slot) == first else "Healthy" for slot in devices}
        kubelet.until("devices", expected)
