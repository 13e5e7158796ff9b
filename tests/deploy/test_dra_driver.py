# SPDX-License-Identifier: BSD-3-Clause
"""The DRA driver's process, with a real scheduler, and with stand-ins for the kubelet and the Kubernetes API."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from jupyter_gpushare import LIBRARIES
from jupyter_gpushare.deploy.kubernetes.dra.conditions import CONDITIONS, Fault
from tests.deploy.api_server import NODE, ApiServer
from tests.deploy.conftest import Kubelet, Plugin
from tests.support.fake_hub import Peer, start_node
from tests.support.scheduler import GIB, Scheduler, Start, until

Kubelets = Callable[..., Kubelet]
Drivers = Callable[..., Plugin]
Specs = list[dict[str, Any]]

CONFIG = {"apiVersion": "jupyter-gpushare/v1alpha1", "kind": "GpuShareConfig"}


@pytest.fixture
def started(start: Start, tmp_path: Path) -> Callable[[], Scheduler]:
    """Start node schedulers that do not identify pods by their uid."""
    socket = str(tmp_path / "gpushare" / "s.sock")

    def begin() -> Scheduler:
        return start_node(
            lambda *words: start(*words, GPUSHARE_SIM_DEVICES="2"),
            tmp_path,
            shared_uids=[1000],
            socket=socket,
            host_memory="4GiB",
        )

    return begin


def claim(
    name: str, device: str, *, config: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """A claim with a GPU, as the API has it."""
    stated = [] if config is None else [{"source": "FromClaim", **opaque(config)}]
    result = {
        "request": "gpu/first",
        "driver": "jupyter-gpushare",
        "pool": NODE,
        "device": device,
        "shareID": "5f1c",
        "consumedCapacity": {"places": "1", "memory": "0", "hostMemory": "0"},
    }
    other = {"request": "nic", "driver": "nic.example.org", "pool": NODE, "device": "nic-0"}
    return {
        "kind": "ResourceClaim",
        "metadata": {
            "namespace": "jhub",
            "name": name,
            "uid": f"uid-of-{name}",
            "ownerReferences": [{"kind": "Pod", "name": f"jupyter-{name}"}],
        },
        "status": {
            "allocation": {"devices": {"results": [other, {**result, **changes}], "config": stated}}
        },
    }


def opaque(config: dict[str, Any]) -> dict[str, Any]:
    return {"opaque": {"driver": "jupyter-gpushare", "parameters": {**CONFIG, **config}}}


def asked(*names: str) -> list[dict[str, str]]:
    return [{"namespace": "jhub", "name": name, "uid": f"uid-of-{name}"} for name in names]


def devices(specs: Specs) -> list[dict[str, Any]]:
    return [device for spec in specs for device in spec["devices"]]


def published(specs: Specs) -> bool:
    return len(devices(specs)) == 2


def tainted(*keys: str) -> Callable[[Specs], bool]:
    """The taint of each GPU; empty: none."""
    return lambda specs: (
        [
            "".join(
                taint["key"].removeprefix("jupyter-gpushare/") for taint in found.get("taints", ())
            )
            for found in devices(specs)
        ]
        == [*keys]
    )


def token_of(specification: Path, scheduler: Scheduler) -> Path:
    """Check what the container of ada's claim gets, and return the file with the token."""
    made = json.loads(specification.read_text())
    assert (made["cdiVersion"], made["kind"]) == ("0.5.0", "jupyter-gpushare/claim")
    ((name, edits),) = ((each["name"], each["containerEdits"]) for each in made["devices"])
    assert name == "uid-of-ada"
    assert edits["env"] == [
        "GPUSHARE_SOCKET=/run/gpushare/s.sock",
        "GPUSHARE_LIBRARIES=/opt/gpushare/lib",
        "GPUSHARE_CLAIM_FILE=/run/gpushare-claim/token",
        "NVIDIA_VISIBLE_DEVICES=void",
    ]
    mounts = {each["containerPath"]: each for each in edits["mounts"]}
    assert all("ro" in each["options"] for each in mounts.values())
    assert mounts["/run/gpushare"]["hostPath"] == str(scheduler.path.parent)
    assert mounts["/opt/gpushare/lib"]["hostPath"] == str(LIBRARIES.resolve())
    token = Path(mounts["/run/gpushare-claim"]["hostPath"]) / "token"
    assert token.stat().st_mode & 0o777 == 0o444
    return token


def test_a_pod_gets_its_claim_and_the_scheduler_knows_it(
    started: Callable[[], Scheduler],
    dra_kubelets: Kubelets,
    drivers: Drivers,
    api: ApiServer,
    node: Path,
    tmp_path: Path,
) -> None:
    scheduler, kubelet, driver = started(), dra_kubelets(), drivers()
    assert kubelet.until("registered") == {
        "type": "DRAPlugin",
        "name": "jupyter-gpushare",
        "endpoint": str(node / "plugins" / "jupyter-gpushare" / "dra.sock"),
        "supported_versions": [
            "v1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ],
    }
    first, second = devices(api.until(published))
    attributes = {name: [*found] for name, found in first["attributes"].items()}
    # The simulated driver's own release is not a version.
    assert attributes == {
        "uuid": ["string"],
        "model": ["string"],
        "memory": ["int"],
        "cudaVersion": ["version"],
        "computeCapability": ["version"],
    }
    uuid = first["attributes"]["uuid"]["string"]
    entitled = {"class": "background", "limit": 0.5, "memory": "2GiB"}
    taken = {"places": "1", "hostMemory": "1Gi"}
    api.claims["jhub", "ada"] = claim("ada", first["name"], config=entitled, consumedCapacity=taken)
    answers = [kubelet.call("NodePrepareResources", claims=asked("ada")) for _ in range(2)]
    assert answers == 2 * [
        {
            "claims": {
                "uid-of-ada": {
                    "devices": [
                        {
                            "request_names": ["gpu"],
                            "pool_name": NODE,
                            "device_name": first["name"],
                            "cdi_device_ids": [
                                "jupyter-gpushare/claim=uid-of-ada",
                                f"nvidia.com/gpu={uuid}",
                            ],
                        }
                    ]
                }
            }
        }
    ]
    specification = node / "cdi" / "jupyter-gpushare-claim-uid-of-ada.json"
    token = token_of(specification, scheduler)
    assert (tmp_path / "state" / "claims").stat().st_mode & 0o077 == 0
    with Peer(scheduler.path, uid=1000) as pod:
        assert pod.ok("present_claim", token=token.read_text().strip())["user"] == (
            "jhub/jupyter-ada"
        )
    with scheduler.control() as control:
        share = control.request("shares")["shares"]["user:jhub/jupyter-ada"]
        assert (share["limit"], share["memory"], share["host"]) == (0.5, 2 * GIB, GIB)
        for _ in range(2):
            answer = kubelet.call("NodeUnprepareResources", claims=asked("ada"))
            assert answer == {"claims": {"uid-of-ada": {}}}
        assert control.request("prepared_claims")["claims"] == []
        assert control.request("shares")["shares"] == {}
    assert not specification.exists()
    assert not token.exists()
    assert second["name"] != first["name"]
    assert driver.close() == 0
    assert not [*node.rglob("*.sock")]
    # The next driver finds the slices; the kubelet deletes them if there is none.
    assert published([found["spec"] for found in api.slices.values()])


def test_slices_are_valid_and_follow_the_node(
    started: Callable[[], Scheduler], drivers: Drivers, api: ApiServer, losing_nvml: dict[str, str]
) -> None:
    lost = Path(losing_nvml["LOST_GPUS"])
    lost.unlink(missing_ok=True)
    drivers("--places-per-gpu", "8", "--memory-overcommit", "2", **losing_nvml)
    specs = api.until(tainted("no-scheduler", "no-scheduler"))
    scheduler = started()
    specs = api.until(tainted("", ""))
    (made,) = api.slices.values()
    for version in ("1.34", kubernetes_validate.latest_version()):
        kubernetes_validate.validate(made, version, strict=True)
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "uid-of-node"}
    ]
    first, _ = devices(specs)
    assert first["allowMultipleAllocations"] is True
    assert {name: found["value"] for name, found in first["capacity"].items()} == {
        "places": "8",
        "memory": "16Gi",
        "hostMemory": "2Gi",
    }
    uuid, generation = first["attributes"]["uuid"]["string"], specs[0]["pool"]["generation"]
    with scheduler.control() as control:
        control.request("drain", gpu=uuid)
    (drained,) = api.until(tainted("drained", ""))
    assert drained["pool"]["generation"] == generation + 1
    lost.write_text("1")
    (both,) = api.until(tainted("drained", "failed"))
    assert both["devices"][0]["taints"] == drained["devices"][0]["taints"]
    lost.unlink()
    with scheduler.control() as control:
        control.request("drain", gpu=uuid, on=False)
    api.until(tainted("", ""))


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
def test_the_health_of_gpus_agrees_with_their_taints(
    started: Callable[[], Scheduler],
    dra_kubelets: Kubelets,
    drivers: Drivers,
    api: ApiServer,
    losing_nvml: dict[str, str],
    version: str,
) -> None:
    service = f"{version}.DRAResourceHealth"
    lost = Path(losing_nvml["LOST_GPUS"])
    lost.unlink(missing_ok=True)
    kubelet = dra_kubelets(health=version)
    drivers(**losing_nvml)

    def until(first: Fault, second: Fault) -> None:
        specs = api.until(tainted(first, second))
        told: list[Any] = [service]
        for found, fault in zip(devices(specs), (first, second), strict=True):
            condition = CONDITIONS[fault]
            uuid = found["attributes"]["uuid"]["string"]
            told.append([f"{NODE}/{found['name']}", condition.health, condition.message(uuid)])
        kubelet.until("health", told)

    until("no-scheduler", "no-scheduler")
    scheduler = started()
    until("", "")
    (uuid, _) = (found["attributes"]["uuid"]["string"] for found in devices(api.until(published)))
    with scheduler.control() as control:
        control.request("drain", gpu=uuid)
        until("drained", "")
        lost.write_text("1")
        until("drained", "failed")
        control.request("drain", gpu=uuid, on=False)
        until("", "failed")
    lost.unlink()
    until("", "")
    scheduler.kill()
    until("no-scheduler", "no-scheduler")


def test_slices_are_repaired_and_refusals_are_logged_once(
    started: Callable[[], Scheduler], drivers: Drivers, api: ApiServer
) -> None:
    started()
    api.fault = (503, "<html>")
    driver = drivers()
    driver.until("cannot publish the GPUs: the Kubernetes API's answer is not valid")
    api.fault = (403, json.dumps({"kind": "Status", "message": "resourceslices is forbidden"}))
    driver.until("the Kubernetes API refused: resourceslices is forbidden; trying again")
    api.fault = None
    api.until(published)
    api.remove_slices()
    api.until(published)
    (found,) = api.slices.values()
    api.interfering = True
    found["spec"]["devices"].pop()
    api.until(published)
    assert "the object has been modified" in driver.log
    assert driver.log.count("is forbidden") == 1
    stray = {**found, "metadata": {"name": "stray", "resourceVersion": "0"}}
    api.slices["stray"] = stray
    api.until(lambda specs: len(specs) == 1)


def test_an_api_without_all_features_is_reported_and_not_written_to_again(
    started: Callable[[], Scheduler], drivers: Drivers, api: ApiServer
) -> None:
    api.unknown = ("taints", "allowMultipleAllocations")
    driver = drivers()
    api.until(published)
    driver.until("did not store all fields")
    api.until_settled()
    started()
    # The next driver does not know what the first one has written.
    driver.close()
    api.unknown = ()
    drivers()
    api.until(lambda specs: all("allowMultipleAllocations" in found for found in devices(specs)))
    api.until_settled()


def test_claims_survive_restarts_of_everything(
    started: Callable[[], Scheduler],
    dra_kubelets: Kubelets,
    drivers: Drivers,
    api: ApiServer,
    node: Path,
) -> None:
    scheduler, driver = started(), drivers()
    kubelet = dra_kubelets(refuse=1)
    kubelet.until("refused")
    kubelet.until("registered")
    driver.until("the kubelet did not register jupyter-gpushare: the name is taken")
    (first, _) = devices(api.until(published))
    api.claims["jhub", "ada"] = claim("ada", first["name"])
    api.claims["jhub", "ben"] = claim("ben", first["name"])
    prepared = kubelet.call("NodePrepareResources", claims=asked("ada", "ben"))
    assert {*prepared["claims"]} == {"uid-of-ada", "uid-of-ben"}

    # The node reboots: nothing that is in memory is left, and the API is slow to come back.
    driver.process.kill()
    driver.process.wait()
    for path in (node / "cdi").iterdir():
        path.write_text("") if path.name.endswith("ben.json") else path.unlink()
    (node / "cdi" / "jupyter-gpushare-claim-gone.json").write_text("{}")
    scheduler.kill()
    api.fault = (500, "")
    kubelet = dra_kubelets()
    driver = drivers()
    kubelet.until("registered")
    again = kubelet.call("NodePrepareResources", claims=asked("ada", "ben", "cy"))
    assert "the Kubernetes API" in again["claims"].pop("uid-of-cy")["error"]
    assert again == prepared
    assert {path.name for path in (node / "cdi").iterdir()} == {
        f"jupyter-gpushare-claim-uid-of-{name}.json" for name in ("ada", "ben")
    }
    scheduler = started()
    with scheduler.control() as control:
        until(lambda: len(control.request("prepared_claims")["claims"]) == 2)
    # A claim that ends while no scheduler responds ends at the next one.
    scheduler.kill()
    kubelet.call("NodeUnprepareResources", claims=asked("ben"))
    scheduler = started()
    with scheduler.control() as control:
        until(lambda: control.request("prepared_claims")["claims"] == ["uid-of-ada"])
        control.request("prepare_claim", uid="unknown", token="t", user="u")
        until(lambda: control.request("prepared_claims")["claims"] == ["uid-of-ada"])


def test_health_is_reported_again_after_restarts_and_when_a_stream_ends(
    started: Callable[[], Scheduler], dra_kubelets: Kubelets, drivers: Drivers
) -> None:
    started()
    kubelet, driver = dra_kubelets(), drivers()
    healthy = kubelet.until("health")
    assert [each[1] for each in healthy[1:]] == ["HEALTHY", "HEALTHY"]
    kubelet.call("EndStream")
    kubelet.until("health ended", "CANCELLED")
    kubelet.until("health", healthy)
    # The driver restarts, is killed, and restarts again.
    assert driver.close() == 0
    kubelet.until("health ended")
    driver = drivers()
    kubelet.until("health", healthy)
    driver.process.kill()
    kubelet.until("health ended", "UNAVAILABLE")
    drivers()
    kubelet.until("health", healthy)
    # The kubelet restarts, and is then one without the service.
    kubelet = dra_kubelets(health="v1alpha1")
    assert kubelet.until("health") == ["v1alpha1.DRAResourceHealth", *healthy[1:]]
    kubelet = dra_kubelets(health="off")
    kubelet.until("registered")


def test_one_bad_claim_does_not_affect_the_others(
    started: Callable[[], Scheduler], dra_kubelets: Kubelets, drivers: Drivers, api: ApiServer
) -> None:
    started()
    kubelet, driver = dra_kubelets(), drivers("--expose", "env")
    kubelet.until("registered")
    (first, _) = devices(api.until(published))
    bad: dict[str, dict[str, Any]] = {
        "foreign": claim("foreign", first["name"], pool="gpu-node-2"),
        "gone": claim("gone", "gpu-that-was-removed"),
        "wrong": claim("wrong", first["name"], config={"weight": -1}),
        "replaced": claim("replaced", first["name"]),
        "empty": claim("empty", first["name"], driver="other.example.org"),
        "sized": claim("sized", first["name"], consumedCapacity={"hostMemory": "much"}),
        "strange": {"metadata": {"uid": "uid-of-strange", "namespace": "jhub"}, "status": None},
    }
    bad["replaced"]["metadata"]["uid"] = "newer"
    for name, found in {**bad, "good": claim("good", first["name"])}.items():
        api.claims["jhub", name] = found
    names = [*bad, "missing", "good"]
    strange = [{"namespace": "jhub", "name": "good", "uid": "../../good"}]
    answer = kubelet.call("NodePrepareResources", claims=[*asked(*names), *strange])["claims"]
    expected = {
        "foreign": "has no GPU",
        "gone": "the node gpu-node-1 has no GPU 'gpu-that-was-removed' in a pool 'gpu-node-1'",
        "wrong": "invalid weight of the claim: weight must be a number above 0",
        "replaced": "was replaced by another one of this name; delete the pod",
        "empty": "has no GPU of jupyter-gpushare allocated",
        "sized": "'much' is not a number of bytes",
        "strange": "has no GPU of jupyter-gpushare allocated",
        "missing": "the Kubernetes API refused: missing not found",
    }
    for name, fault in expected.items():
        assert fault in answer[f"uid-of-{name}"]["error"]
        assert "devices" not in answer[f"uid-of-{name}"]
    assert "is not the uid of a claim" in answer["../../good"]["error"]
    (device,) = answer["uid-of-good"]["devices"]
    # The GPU comes by NVIDIA_VISIBLE_DEVICES.
    assert device["cdi_device_ids"] == ["jupyter-gpushare/claim=uid-of-good"]
    ended = kubelet.call("NodeUnprepareResources", claims=[*asked(*names), *strange])["claims"]
    assert len(ended) == len(names) + 1
    assert not any(found.get("error") for found in ended.values())
    assert driver.close() == 0
