# SPDX-License-Identifier: BSD-3-Clause
"""The manifests of the Hub service match the Kubernetes API, the command, the Hub and each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from traitlets.config import Config

import jupyter_gpushare
from jupyter_gpushare.cli.main import build_parser
from jupyter_gpushare.hub.config import GpuShareHub
from jupyter_gpushare.scheduler.node.hub_login import ADMIN, READ

DEPLOY = Path(jupyter_gpushare.__file__).parent / "deploy" / "kubernetes"
FOLDER = DEPLOY / "hub"
#: The oldest Kubernetes version that Zero to JupyterHub supports, and the newest version with schemas in this package.
VERSIONS = ("1.32", kubernetes_validate.latest_version())


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


@pytest.fixture
def container() -> Any:
    (container,) = read("hub.yaml")["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_match_the_schemas(version: str) -> None:
    resources = read("kustomization.yaml")["resources"]
    assert {*resources} == {p.name for p in FOLDER.glob("*.yaml")} - {
        "kustomization.yaml",
        "values-z2jh.yaml",
    }
    for name in resources:
        kubernetes_validate.validate(read(name), version, strict=True)


def test_the_command_accepts_the_arguments(container: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    args = build_parser("hub").parse_args(container["args"])
    settings = GpuShareHub(config=Config(GpuShareHub={"url": args.url, "discover": args.discover}))
    assert settings.prefix == "/services/gpushare/"
    (port,) = container["ports"]
    assert args.url.split("/")[2] == f"0.0.0.0:{port['containerPort']}"
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {
            "port": port["name"],
            "path": f"{settings.prefix}health",
        }
    # The page shows the node's name in Kubernetes.
    assert "GPUSHARE_NODE_NAME" in {each["name"] for each in container["env"]}
    monkeypatch.setenv("GPUSHARE_NODE_NAME", "gpu-1.example.org")
    assert GpuShareHub().node_name == "gpu-1.example.org"


def test_the_services_find_the_scheduler_and_each_other(container: Any) -> None:
    args = build_parser("hub").parse_args(container["args"])
    scheduler = yaml.safe_load((DEPLOY / "scheduler.yaml").read_text())["spec"]["template"]["spec"]
    spec = read("hub.yaml")["spec"]["template"]["spec"]
    (volume,) = spec["volumes"]
    assert volume in scheduler["volumes"]
    assert spec["nodeSelector"] == scheduler["nodeSelector"]
    (mount,) = container["volumeMounts"]
    assert {**mount, "readOnly": False} in [
        {"readOnly": False, **each} for each in scheduler["containers"][0]["volumeMounts"]
    ]
    assert (Path(args.socket).parent, mount["readOnly"]) == (Path(mount["mountPath"]), True)
    (discover,) = args.discover
    service, nodes = read("service.yaml"), read("nodes.yaml")
    name, port = discover.split(":")
    assert name == nodes["metadata"]["name"]
    assert nodes["spec"]["clusterIP"] == "None"
    labels = read("hub.yaml")["spec"]["template"]["metadata"]["labels"]
    for each in (service, nodes):
        assert each["spec"]["selector"].items() <= labels.items()
        (found,) = each["spec"]["ports"]
        assert (str(found["port"]), found["targetPort"]) == (port, container["ports"][0]["name"])


def test_names_in_the_manifests_exist(container: Any) -> None:
    kustomization = read("kustomization.yaml")
    (config,) = kustomization["configMapGenerator"]
    assert container["envFrom"] == [{"configMapRef": {"name": config["name"]}}]
    (image,) = kustomization["images"]
    assert (image["name"], image["newTag"]) == (container["image"], jupyter_gpushare.__version__)
    both = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
    assert (kustomization["namespace"], kustomization["images"]) == (
        both["namespace"],
        both["images"],
    )
    assert "jupyterhub" in (DEPLOY / "Dockerfile").read_text()


def test_the_pod_has_only_the_rights_that_it_needs(container: Any) -> None:
    spec = read("hub.yaml")["spec"]["template"]["spec"]
    assert container["securityContext"] == {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC", "hostPID", "serviceAccountName"} & {*spec}


def test_the_hub_values_match_the_manifests() -> None:
    # Not at the top: each worker of pytest would import JupyterHub, which takes 2 s.
    from jupyterhub.scopes import scope_definitions

    hub = read("values-z2jh.yaml")["hub"]
    (name,) = hub["services"]
    service = hub["services"][name]
    namespace = read("kustomization.yaml")["namespace"]
    made = read("service.yaml")
    assert service["url"] == (
        f"http://{made['metadata']['name']}.{namespace}.svc:{made['spec']['ports'][0]['port']}"
    )
    assert {*service["oauth_client_allowed_scopes"]} == {READ, ADMIN}
    scopes = hub["config"]["JupyterHub"]["custom_scopes"]
    assert {*scopes} == {READ, ADMIN}
    for role in hub["loadRoles"].values():
        for scope in role["scopes"]:
            assert scope in scopes or scope.partition("!")[0] in scope_definitions, scope
        assert {*role.get("services", [])} <= {name}
