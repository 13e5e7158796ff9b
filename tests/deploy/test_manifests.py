# SPDX-License-Identifier: BSD-3-Clause
"""The manifests fit the Kubernetes API, our own commands and each other; the values fit Zero to JupyterHub."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import jupyter_gpushare
from jupyter_gpushare.cli.device_plugin import KUBELET, RESOURCE
from jupyter_gpushare.cli.main import build_parser
from jupyter_gpushare.deploy.kubernetes.plugin import SOCKETS
from jupyter_gpushare.scheduler.policies import available

FOLDER = Path(jupyter_gpushare.__file__).parent / "deploy" / "kubernetes"
#: The oldest Kubernetes that Zero to JupyterHub is for now, and the newest whose schemas are here.
VERSIONS = ("1.32", kubernetes_validate.latest_version())
#: What Zero to JupyterHub's configuration reference has. Below those that end in a star, anything goes.
Z2JH = (
    "singleuser.extraEnv.*",
    "singleuser.extraPodConfig.*",
    "singleuser.extraResource.guarantees.*",
    "singleuser.extraResource.limits.*",
    "singleuser.extraTolerations",
    "singleuser.image.name",
    "singleuser.image.tag",
    "singleuser.memory.guarantee",
    "singleuser.memory.limit",
)


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def settings() -> dict[str, str]:
    (config,) = read("kustomization.yaml")["configMapGenerator"]
    return dict(literal.split("=", 1) for literal in config["literals"])


def pod(name: str) -> Any:
    return read(name)["spec"]["template"]["spec"]


def arguments(name: str) -> list[str]:
    """What the container's command gets: $(NAME) stands for a setting."""
    (container,) = pod(name)["containers"]
    return [
        re.sub(r"\$\((\w+)\)", lambda found: settings()[found[1]], word)
        for word in container["args"]
    ]


SETS = ("scheduler.yaml", "device-plugin.yaml")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_api_takes_them(version: str) -> None:
    for name in read("kustomization.yaml")["resources"]:
        kubernetes_validate.validate(read(name), version, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kustomize_makes_of_them_what_the_api_takes() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=True
    )
    made = [*yaml.safe_load_all(done.stdout)]
    assert sorted(each["kind"] for each in made) == [
        *("ConfigMap", "DaemonSet", "DaemonSet", "Namespace")
    ]
    for each in made:
        kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
    (config,) = (each for each in made if each["kind"] == "ConfigMap")
    for each in made:
        if each["kind"] == "DaemonSet":
            (container,) = each["spec"]["template"]["spec"]["containers"]
            assert container["envFrom"] == [{"configMapRef": {"name": config["metadata"]["name"]}}]
            assert container["image"].endswith(f"/jupyter-gpushare:{jupyter_gpushare.__version__}")


def test_our_commands_take_the_arguments() -> None:
    plugin = build_parser("device-plugin").parse_args(arguments("device-plugin.yaml"))
    scheduler = build_parser("scheduler").parse_args(arguments("scheduler.yaml"))
    assert scheduler.policy in available()
    assert plugin.socket == scheduler.socket
    # Containers find the socket where the node has it, so that one setting tells everybody.
    assert plugin.socket.parent == SOCKETS
    assert plugin.kubelet_dir == KUBELET
    assert plugin.resource == RESOURCE
    probe = pod("scheduler.yaml")["containers"][0]["livenessProbe"]["exec"]["command"]
    assert build_parser(probe[1]).parse_args(probe[1:]).command == "status"


@pytest.mark.parametrize("name", SETS)
def test_each_folder_lies_where_the_node_has_it_and_no_more_may_be_written_than_has_to(
    name: str,
) -> None:
    spec = pod(name)
    (container,) = spec["containers"]
    on_node = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert {volume: mount["mountPath"] for volume, mount in mounts.items()} == on_node
    options = build_parser(arguments(name)[0]).parse_args(arguments(name))
    needed = {options.socket.parent: name == "scheduler.yaml"}
    if name == "device-plugin.yaml":
        needed |= {options.kubelet_dir: True, options.library_dir: True}
    writable = {
        Path(mount["mountPath"]): not mount.get("readOnly", False) for mount in mounts.values()
    }
    assert writable == needed


@pytest.mark.parametrize("name", SETS)
def test_they_run_with_as_little_as_they_need(name: str) -> None:
    spec = pod(name)
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC", "serviceAccountName"} & {*spec}
    assert spec.get("hostPID", False) is (name == "scheduler.yaml")


def paths(values: Any, before: str = "") -> Iterator[str]:
    if isinstance(values, dict) and values:
        for name, value in values.items():
            yield from paths(value, f"{before}.{name}" if before else name)
    else:
        yield before


def test_zero_to_jupyterhub_has_the_values() -> None:
    for path in paths(read("values-z2jh.yaml")):
        assert any(
            path.startswith(known[:-1]) if known.endswith("*") else path == known for known in Z2JH
        ), path


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pods_that_the_values_make_fit_the_api(version: str) -> None:
    values = read("values-z2jh.yaml")["singleuser"]
    assert {*values["extraResource"]["limits"]} == {settings()["RESOURCE"]}
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "jupyter-ada"},
        "spec": {
            **values["extraPodConfig"],
            "tolerations": values["extraTolerations"],
            "containers": [
                {
                    "name": "notebook",
                    "image": f"{values['image']['name']}:{values['image']['tag']}",
                    "env": [{"name": name, "value": v} for name, v in values["extraEnv"].items()],
                    "resources": {"limits": values["extraResource"]["limits"]},
                }
            ],
        },
    }
    kubernetes_validate.validate(made, version, strict=True)
    made["spec"]["runtimeClas"] = "nvidia"  # type: ignore[index]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(made, version, strict=True)
