# SPDX-License-Identifier: BSD-3-Clause
"""The committed messages are those of the .proto, and on the wire what the kubelet speaks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from jupyter_gpushare.deploy.kubernetes import api_pb2 as api
from jupyter_gpushare.deploy.kubernetes.dra import dra_pb2 as dra
from jupyter_gpushare.deploy.kubernetes.dra import health_pb2 as health
from jupyter_gpushare.deploy.kubernetes.dra import registration_pb2 as registration

PROTOS = {
    "deploy/kubernetes/api.proto": api,
    "deploy/kubernetes/dra/dra.proto": dra,
    "deploy/kubernetes/dra/health.proto": health,
    "deploy/kubernetes/dra/registration.proto": registration,
}


def test_the_messages_match_their_source(root: Path, tmp_path: Path) -> None:
    """If not: python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. PROTO."""
    out = tmp_path / "set"
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I."),
            *(f"--descriptor_set_out={out}", *PROTOS),
        ],
        cwd=root,
        check=True,
    )
    for made in FileDescriptorSet.FromString(out.read_bytes()).file:
        committed = FileDescriptorProto.FromString(PROTOS[made.name].DESCRIPTOR.serialized_pb)
        assert committed == without_json_names(made)


def without_json_names(file: FileDescriptorProto) -> FileDescriptorProto:
    """Clear what protoc adds to a descriptor set alone."""
    messages = [*file.message_type]
    for message in messages:
        messages += message.nested_type
        for field in message.field:
            field.ClearField("json_name")
    return file


@pytest.mark.parametrize("proto", PROTOS)
def test_protobuf_may_not_be_older_than_the_generator(root: Path, proto: str) -> None:
    text = (root / proto.replace(".proto", "_pb2.py")).read_text()
    generated = re.search(r"Protobuf Python Version: ([\d.]+)", text)
    allowed = re.search(r'"protobuf>=([\d.]+)"', (root / "pyproject.toml").read_text())
    assert generated
    assert allowed
    first, second = ([int(part) for part in found[1].split(".")] for found in (allowed, generated))
    assert first >= second


def test_messages_on_the_wire_are_those_of_the_kubelet() -> None:
    """Bytes written by hand from the published numbers: tag = number * 8 + kind (0: number, 2: length and bytes)."""
    request = api.RegisterRequest(
        version="v1beta1",
        endpoint="e.sock",
        resource_name="a/b",
        options=api.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        ),
    )
    assert request.SerializeToString() == (
        b"\x0a\x07v1beta1\x12\x06e.sock\x1a\x03a/b\x22\x04\x08\x01\x10\x01"
    )
    devices = api.ListAndWatchResponse(devices=[api.Device(ID="G", health="Healthy")])
    assert devices.SerializeToString() == b"\x0a\x0c\x0a\x01G\x12\x07Healthy"
    container = api.ContainerAllocateResponse(
        envs={"K": "V"},
        mounts=[api.Mount(container_path="c", host_path="h", read_only=True)],
        cdi_devices=[api.CDIDevice(name="n")],
    )
    assert api.AllocateResponse(container_responses=[container]).SerializeToString() == (
        b"\x0a\x17\x0a\x06\x0a\x01K\x12\x01V\x12\x08\x0a\x01c\x12\x01h\x18\x01\x2a\x03\x0a\x01n"
    )
    asked = api.PreferredAllocationRequest.FromString(b"\x0a\x08\x0a\x01a\x12\x01m\x18\x02")
    (request,) = asked.container_requests
    assert [*request.available_deviceIDs] == ["a"]
    assert [*request.must_include_deviceIDs] == ["m"]
    assert request.allocation_size == 2
    preferred = api.PreferredAllocationResponse.FromString(b"\x0a\x03\x0a\x01a")
    assert [*preferred.container_responses[0].deviceIDs] == ["a"]
    allocate = api.AllocateRequest.FromString(b"\x0a\x03\x0a\x01a")
    assert [*allocate.container_requests[0].devices_ids] == ["a"]
    assert [*api.PreStartContainerRequest.FromString(b"\x0a\x01a").devices_ids] == ["a"]


def test_messages_of_dra_on_the_wire_are_those_of_the_kubelet() -> None:
    """As above. A map is a list of pairs, with the key as 1 and the value as 2."""
    info = registration.PluginInfo(type="t", name="n", endpoint="e", supported_versions=["v", "w"])
    assert info.SerializeToString() == b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v\x22\x01w"
    status = registration.RegistrationStatus.FromString(b"\x08\x01\x12\x01e")
    assert (status.plugin_registered, status.error) == (True, "e")
    asked = dra.NodePrepareResourcesRequest.FromString(b"\x0a\x09\x0a\x01n\x12\x01u\x1a\x01c")
    (claim,) = asked.claims
    assert (claim.namespace, claim.uid, claim.name) == ("n", "u", "c")
    device = dra.Device(
        request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["x", "y"]
    )
    prepared = dra.NodePrepareResourceResponse(devices=[device], error="e")
    assert prepared.SerializeToString() == (
        b"\x0a\x0f\x0a\x01r\x12\x01p\x1a\x01d\x22\x01x\x22\x01y\x12\x01e"
    )
    answer = dra.NodePrepareResourcesResponse(
        claims={"u": dra.NodePrepareResourceResponse(error="e")}
    )
    assert answer.SerializeToString() == b"\x0a\x08\x0a\x01u\x12\x03\x12\x01e"
    ended = dra.NodeUnprepareResourcesResponse(
        claims={"u": dra.NodeUnprepareResourceResponse(error="e")}
    )
    assert ended.SerializeToString() == b"\x0a\x08\x0a\x01u\x12\x03\x0a\x01e"
    assert dra.NodeUnprepareResourcesRequest.FromString(b"\x0a\x03\x12\x01u").claims[0].uid == "u"
    report = health.NodeWatchResourcesResponse(
        devices=[
            health.DeviceHealth(
                device=health.DeviceIdentifier(pool_name="p", device_name="d"),
                health="UNHEALTHY",
                last_updated_time=3,
                health_check_timeout_seconds=4,
                message="m",
            )
        ]
    )
    assert report.SerializeToString() == (
        b"\x0a\x11\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\x03\x20\x04\x2a\x01m"
    )
