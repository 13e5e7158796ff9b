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
from jupyter_gpushare.cli.admin.device_plugin import KUBELET, RESOURCE
from jupyter_gpushare.cli.admin.hibernator import SOCKET
from jupyter_gpushare.cli.main import build_parser
from jupyter_gpushare.deploy.kubernetes.plugin import SOCKETS
from jupyter_gpushare.scheduler.node.config import NodeScheduler, load
from jupyter_gpushare.scheduler.node.hub_login import ADMIN, READ
from jupyter_gpushare.scheduler.policies import available

FOLDER = Path(jupyter_gpushare.__file__).parent / "deploy" / "kubernetes"
#: The oldest Kubernetes that Zero to JupyterHub is for now, and the newest whose schemas are here.
VERSIONS = ("1.32", kubernetes_validate.latest_version())
#: What Zero to JupyterHub's configuration reference has. Below those that end in a star, anything goes.
Z2JH = (
    "hub.config.*",
    "hub.networkPolicy.interNamespaceAccessLabels",
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
    config, _ = read("kustomization.yaml")["configMapGenerator"]
    return dict(literal.split("=", 1) for literal in config["literals"])


def configured() -> NodeScheduler:
    """What the scheduler reads: the file of the ConfigMap, where it is mounted."""
    options = build_parser("scheduler").parse_args(arguments("scheduler.yaml"))
    _, config = read("kustomization.yaml")["configMapGenerator"]
    (file,) = config["files"]
    (volume,) = (v for v in pod("scheduler.yaml")["volumes"] if "configMap" in v)
    assert volume["configMap"]["name"] == config["name"]
    (container,) = pod("scheduler.yaml")["containers"]
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert options.config == mounts[volume["name"]] / file
    return load(FOLDER / file)


def pod(name: str) -> Any:
    return read(name)["spec"]["template"]["spec"]


def arguments(name: str) -> list[str]:
    """What the container's command gets: $(NAME) stands for a setting."""
    (container,) = pod(name)["containers"]
    return [
        re.sub(r"\$\((\w+)\)", lambda found: settings()[found[1]], word)
        for word in container["args"]
    ]


def dra_objects() -> list[Any]:
    """Return the objects of the folder with the DRA driver."""
    names = read("dra-driver/kustomization.yaml")["resources"]
    texts = [(FOLDER / "dra-driver" / name).read_text() for name in names]
    return [each for text in texts for each in yaml.safe_load_all(text)]


HIBERNATOR = "hibernation/hibernator.yaml"
SETS = ("scheduler.yaml", "device-plugin.yaml")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_api_accepts_the_manifests(version: str) -> None:
    for folder in (".", "hibernation"):
        for name in read(f"{folder}/kustomization.yaml")["resources"]:
            kubernetes_validate.validate(read(f"{folder}/{name}"), version, strict=True)


@pytest.mark.parametrize("version", ["1.34", VERSIONS[-1]])
def test_the_api_accepts_the_dra_driver(version: str) -> None:
    for each in dra_objects():
        kubernetes_validate.validate(each, version, strict=True)


BUILT = {
    ".": ("ConfigMap", "ConfigMap", "DaemonSet", "DaemonSet", "Namespace", "ResourceQuota"),
    "dra-driver": (
        *("ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet", "DeviceClass"),
        *("ServiceAccount", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    ),
}
NAMESPACED = {"ConfigMap", "DaemonSet", "ResourceQuota", "ServiceAccount"}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
@pytest.mark.parametrize("folder", BUILT, ids=["node", "dra-driver"])
def test_the_api_accepts_what_kustomize_builds(folder: str) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER / folder)], capture_output=True, text=True, check=True
    )
    made = [*yaml.safe_load_all(done.stdout)]
    assert sorted(each["kind"] for each in made) == [*BUILT[folder]]
    for each in made:
        namespace = "gpushare" if each["kind"] in NAMESPACED else None
        assert each["metadata"].get("namespace") == namespace
    for each in made:
        kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
    configs = {each["metadata"]["name"] for each in made if each["kind"] == "ConfigMap"}
    for each in made:
        if each["kind"] == "DaemonSet":
            spec = each["spec"]["template"]["spec"]
            (container,) = spec["containers"]
            sources = [source["configMapRef"] for source in container.get("envFrom", ())]
            sources += [v["configMap"] for v in spec["volumes"] if "configMap" in v]
            (used,) = (source["name"] for source in sources)
            assert used in configs
            assert container["image"].endswith(f"/jupyter-gpushare:{jupyter_gpushare.__version__}")


def test_the_quota_lets_the_pods_be_critical() -> None:
    quota = read("quota.yaml")["spec"]
    (match,) = quota["scopeSelector"]["matchExpressions"]
    assert (match["scopeName"], match["operator"]) == ("PriorityClass", "In")
    pods = [pod(name) for name in (*SETS, HIBERNATOR)]
    assert {each["priorityClassName"] for each in pods} <= set(match["values"])


#: Folders that are applied with a command of their own, and the page with the command.
APPLIED = {".": "zero-to-jupyterhub.md", "hub": "zero-to-jupyterhub.md", "dra-driver": "dra.md"}


@pytest.mark.parametrize("folder", APPLIED, ids=["node", "hub", "dra-driver"])
def test_the_documented_command_prunes_only_objects_of_the_folder(root: Path, folder: str) -> None:
    (labels,) = read(f"{folder}/kustomization.yaml")["labels"]
    ((key, value),) = labels["pairs"].items()
    # A selector cannot be changed in an object that exists.
    assert not labels.get("includeSelectors")
    path = Path("deploy/kubernetes", folder)
    command = (
        f"kubectl apply --kustomize {path} --prune --selector {key}={value} "
        "--prune-allowlist core/v1/ConfigMap"
    )
    page = root / "docs" / "how-to" / "admin" / APPLIED[folder]
    text = " ".join(page.read_text().replace("\\\n", " ").split())
    assert command in text
    others = [f"{each}/kustomization.yaml" for each in APPLIED if each != folder]
    assert all(read(other)["labels"][0]["pairs"] != labels["pairs"] for other in others)


def test_our_commands_accept_the_arguments() -> None:
    plugin = build_parser("device-plugin").parse_args(arguments("device-plugin.yaml"))
    config = configured()
    assert config.policy in available()
    assert plugin.socket == Path(config.socket)
    # Containers find the socket at the node's path, so that one setting suits all.
    assert plugin.socket.parent == SOCKETS
    assert plugin.kubelet_dir == KUBELET
    assert plugin.resource == RESOURCE


@pytest.mark.parametrize("name", SETS)
def test_volumes_match_the_node_and_are_writable_only_where_needed(
    name: str,
) -> None:
    spec = pod(name)
    (container,) = spec["containers"]
    on_node = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert {name: mounts[name]["mountPath"] for name in on_node} == on_node
    # A ConfigMap cannot be written to. An empty folder is the pod's own.
    own = {v["name"] for v in spec["volumes"] if "emptyDir" in v}
    assert {name for name in mounts if not mounts[name].get("readOnly")} <= {*on_node, *own}
    if name == "scheduler.yaml":
        config = configured()
        needed = {Path(config.socket).parent: True, Path(config.state_dir): True}
        needed[Path(config.hibernator_socket).parent] = False
    else:
        options = build_parser(arguments(name)[0]).parse_args(arguments(name))
        needed = {options.socket.parent: False}
        needed |= {options.kubelet_dir: True, options.library_dir: True}
    writable = {
        Path(mounts[name]["mountPath"]): not mounts[name].get("readOnly", False) for name in on_node
    }
    assert writable == needed


def test_a_new_scheduler_stands_by_before_the_old_one_ends() -> None:
    made = yaml.safe_load((FOLDER / "scheduler.yaml").read_text())
    update = made["spec"]["updateStrategy"]
    assert update == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert "--stand-by" in container["args"]
    # The old scheduler answers on the node's socket, so probes ask this one on its own.
    variables = {one["name"]: one["value"] for one in container["env"]}
    probed = Path(variables["GPUSHARE_ALIVE_SOCKET"])
    assert probed.parent != Path(variables["GPUSHARE_SOCKET"]).parent
    assert str(probed.parent) in [mount["mountPath"] for mount in container["volumeMounts"]]
    probes = [container[f"{kind}Probe"]["exec"] for kind in ("startup", "readiness", "liveness")]
    assert probes[0] == probes[1] == probes[2]
    # A scheduler that hangs while it stands by is found before the old one would end.
    alive = container["livenessProbe"]
    found = alive["failureThreshold"] * alive["periodSeconds"] + alive["timeoutSeconds"]
    assert made["spec"]["minReadySeconds"] > found


@pytest.mark.parametrize("name", ["device-plugin.yaml", "dra-driver/driver.yaml"])
def test_a_rollout_stops_at_a_node_where_the_new_pod_fails(name: str) -> None:
    """Without a probe, a pod is ready as soon as it runs."""
    spec = read(name)["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert "readinessProbe" not in container
    assert spec["minReadySeconds"] == 10
    # By default, one pod may be unavailable. Two cannot run on a node, because they would use the same sockets.
    assert "updateStrategy" not in spec


@pytest.mark.parametrize("name", SETS)
def test_pods_run_with_least_privilege(name: str) -> None:
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


def test_only_the_hibernator_is_privileged_and_only_the_scheduler_reaches_it() -> None:
    spec = pod(HIBERNATOR)
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_OVERRIDE"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC", "serviceAccountName"} & {*spec}
    # The scheduler must be in the same PID namespace.
    assert spec["hostPID"] is pod("scheduler.yaml")["hostPID"] is True
    options = build_parser("hibernator").parse_args(arguments(HIBERNATOR))
    assert options.socket == Path(configured().hibernator_socket) == SOCKET
    (mount,), (volume,) = container["volumeMounts"], spec["volumes"]
    assert mount["mountPath"] == volume["hostPath"]["path"] == str(SOCKET.parent)
    # Users' pods mount the folder of the scheduler's socket.
    assert SOCKET.parent != SOCKETS
    assert SOCKETS not in SOCKET.parents
    policy = read("hibernation/network.yaml")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & {*policy}
    labels = read(HIBERNATOR)["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"] == labels
    # It is off by default.
    assert configured().hibernate_after == 0
    base, extra = read("kustomization.yaml"), read("hibernation/kustomization.yaml")
    assert not any("hibernator" in name for name in base["resources"])
    assert (extra["images"], extra["namespace"]) == (base["images"], base["namespace"])
    assert extra["labels"][0]["pairs"] != base["labels"][0]["pairs"]


def paths(values: Any, before: str = "") -> Iterator[str]:
    if isinstance(values, dict) and values:
        for name, value in values.items():
            yield from paths(value, f"{before}.{name}" if before else name)
    else:
        yield before


def test_users_of_zero_to_jupyterhub_are_identified_by_their_hub() -> None:
    """All its pods run as 1000, and its Hub answers at port 8081 of its service."""
    config = configured()
    assert config.shared_uids == [1000]
    assert re.fullmatch(r"http://hub\.[a-z]+\.svc:8081/hub/api", config.hub_api_url)
    # In pods, the scheduler's socket is another user's.
    assert config.socket_mode == "0666"
    template = read("scheduler.yaml")["spec"]["template"]["metadata"]["labels"]
    assert template["hub.jupyter.org/network-access-hub"] == "true"
    hub = read("values-z2jh.yaml")["hub"]["config"]
    stated = {scope for scope in hub["KubeSpawner"]["server_token_scopes"] if "custom:" in scope}
    # A scope that the Hub does not know keeps every server from starting.
    assert stated == {*hub["JupyterHub"]["custom_scopes"]} == {ADMIN, READ}


def test_the_values_exist_in_zero_to_jupyterhub() -> None:
    for path in paths(read("values-z2jh.yaml")):
        assert any(
            path.startswith(known[:-1]) if known.endswith("*") else path == known for known in Z2JH
        ), path


@pytest.mark.parametrize("version", VERSIONS)
def test_the_api_accepts_pods_made_from_the_values(version: str) -> None:
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
