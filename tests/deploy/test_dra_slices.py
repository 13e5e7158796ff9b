# SPDX-License-Identifier: BSD-3-Clause
"""GPUs as devices of ResourceSlices, and the record of prepared claims."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.deploy.kubernetes.dra.prepared import (
    AllocatedGpu,
    Mounts,
    PreparedClaim,
    PreparedClaims,
)
from jupyter_gpushare.deploy.kubernetes.dra.slices import (
    Gpu,
    Sharing,
    device,
    is_same,
    parse_quantity,
    pool,
    quantity,
    semantic,
)
from tests.support.scheduler import GIB

H100 = Gpu("GPU-0A", "NVIDIA H100 " + "x" * 80, 80 * GIB, "580.65.06", "13.0", (9, 0), "drained")


def valid(spec: dict[str, Any]) -> None:
    spec["pool"]["generation"] = 1
    made = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "slice"},
        "spec": spec,
    }
    kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)


def test_a_gpu_is_a_device_of_many_claims() -> None:
    made = device(H100, Sharing(4, 1.5), 100 * GIB)
    assert made["name"] == "gpu-0a"
    assert made["attributes"]["driverVersion"] == {"version": "580.65.6"}
    assert made["attributes"]["computeCapability"] == {"version": "9.0.0"}
    assert len(made["attributes"]["model"]["string"]) == 64
    assert made["taints"] == [{"key": "jupyter-gpushare/drained", "effect": "NoSchedule"}]
    assert made["capacity"] == {
        "places": {
            "value": "4",
            "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}},
        },
        "memory": {
            "value": "120Gi",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "80Gi"}},
        },
        "hostMemory": {
            "value": "100Gi",
            "requestPolicy": {"default": "0", "validRange": {"min": "0"}},
        },
    }
    alone = device(Gpu("GPU-B", "T4", GIB), Sharing(1, 1), None)
    # The API refuses a range without room for a step.
    assert alone["capacity"]["places"]["requestPolicy"] == {"default": "1", "validValues": ["1"]}
    assert {*alone["attributes"]} == {"uuid", "model", "memory"}
    assert {*alone["capacity"]} == {"places", "memory"}
    assert "taints" not in alone
    (spec,) = pool("n", [made, alone])
    valid(spec)


def test_a_slice_has_no_more_devices_than_the_api_allows() -> None:
    devices = [device(Gpu(f"MIG-{n}", "MIG", GIB), Sharing(4, 1), None) for n in range(150)]
    specs = pool("n", devices)
    assert [len(spec["devices"]) for spec in specs] == [64, 64, 22]
    assert all(spec["pool"]["resourceSliceCount"] == 3 for spec in specs)
    assert [each for spec in specs for each in spec["devices"]] == devices
    for spec in specs:
        valid(spec)


def test_only_times_and_generations_may_differ() -> None:
    (wanted,) = pool("n", [device(H100, Sharing(4, 1), None)])
    found = json.loads(json.dumps(wanted))
    found["pool"]["generation"] = 7
    found["devices"][0]["taints"][0]["timeAdded"] = "2026-11-27T07:00:00Z"
    assert is_same(wanted, found)
    for change in ({"nodeName": "other"}, {"devices": []}, {"devices": None}, {"pool": {}}):
        assert not is_same(wanted, {**found, **change})
    found["devices"][0]["capacity"]["places"]["value"] = "5"
    assert not is_same(wanted, found)


@given(st.integers(0, 1 << 60))
def test_quantities_are_whole_mebibytes(size: int) -> None:
    assert parse_quantity(quantity(size)) == size >> 20 << 20
    assert size < 1 << 30 or not quantity(size).endswith("024Mi")


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1Gi", GIB), ("2k", 2000), ("3M", 3 * 10**6), ("1E", 10**18), ("1Ei", 1 << 60)],
)
def test_quantities_of_claims_are_read(text: str, size: int) -> None:
    assert parse_quantity(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5Gi", "Gi", "1e3", "1Zi", None, "1Gi "])
def test_other_quantities_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a number of bytes"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "version"), [("13.0", "13.0.0"), ("580.65.06", "580.65.6"), ("9", "9.0.0")]
)
def test_versions_are_semantic(text: str, version: str) -> None:
    assert semantic(text) == version
    assert semantic(f"{text}-rc") is None


# --- The record -----------------------------------------------------------------------------------

MOUNTS = Mounts(Path("/run/gpushare/s.sock"), Path("/opt/lib"), "env")


def claim(uid: str) -> PreparedClaim:
    gpus = tuple(AllocatedGpu("r", "n", f"gpu-{n}", f"GPU-{n}") for n in (0, 1))
    return PreparedClaim(
        uid, "jhub", "c", "jhub/ada", gpus, None, {"memory": 3 * GIB, "weight": 2.5}
    )


def specified(cdi: Path, uid: str) -> list[dict[str, Any]]:
    """Return the devices of a claim's specification."""
    made = json.loads((cdi / f"jupyter-gpushare-claim-{uid}.json").read_text())
    return [*made["devices"]]


@pytest.mark.parametrize("expose", ["cdi", "env"])
def test_each_gpu_of_a_claim_has_an_identifier_of_its_own(
    tmp_path: Path, expose: Literal["cdi", "env"]
) -> None:
    """Otherwise, the API refuses the pod's status. Two requests of a claim may get the same GPU."""
    made = claim("twice")
    made = replace(made, gpus=(*made.gpus, made.gpus[0]))
    claims = PreparedClaims(tmp_path / "state", tmp_path / "cdi", replace(MOUNTS, expose=expose))
    claims.specify(made)
    names = claims.devices(made)
    first = [each[0] for each in names]
    assert first == [f"jupyter-gpushare/claim=twice{end}" for end in ("", "-1", "-2")]
    assert [each[1:] for each in names] == (
        [["nvidia.com/gpu=GPU-0"], ["nvidia.com/gpu=GPU-1"], ["nvidia.com/gpu=GPU-0"]]
        if expose == "cdi"
        else [[], [], []]
    )
    devices = specified(tmp_path / "cdi", "twice")
    assert [f"jupyter-gpushare/claim={each['name']}" for each in devices] == first


def test_a_record_is_read_back_and_damaged_ones_are_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = PreparedClaims(tmp_path / "state", tmp_path / "cdi", MOUNTS)
    for uid in ("good", "cut", "renamed", "tokenless"):
        first.add(claim(uid))
        first.specify(claim(uid))
    kept = {found.uid: token for found, token in first}
    assert len({*kept.values()}) == 4
    made, also = specified(tmp_path / "cdi", "good")
    assert "NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1" in made["containerEdits"]["env"]
    assert also["containerEdits"] == made["containerEdits"]
    folder = tmp_path / "state" / "claims"
    (folder / "cut" / "claim.json").write_text('{"uid": "cut"')
    (folder / "renamed").rename(folder / "other")
    (folder / "tokenless" / "token" / "token").write_text("")
    (folder / ".half").mkdir()
    second = PreparedClaims(tmp_path / "state", tmp_path / "cdi", MOUNTS)
    assert [*second] == [(claim("good"), kept["good"])]
    assert type(claim("good").shares["memory"]) is type(next(iter(second))[0].shares["memory"])
    assert [path.name for path in folder.iterdir()] == ["good"]
    assert [path.name for path in (tmp_path / "cdi").iterdir()] == [
        "jupyter-gpushare-claim-good.json"
    ]
    assert caplog.text.count("deleted the record of claim") == 3
    second.remove("good")
    second.remove("good")
    second.remove("../claims")
    assert [*folder.iterdir()] == []
    second.add(claim("cut"))
    assert [found.uid for found, _ in second] == ["cut"]
