# SPDX-License-Identifier: BSD-3-Clause
"""The Helm chart, rendered by Helm's engine, fits the Kubernetes API, our manifests and our commands."""

from __future__ import annotations

import json
import re
import textwrap
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
import yaml

import jupyter_gpushare
from jupyter_gpushare.cli.admin.dra_driver import CDI, KUBELET, STATE
from jupyter_gpushare.cli.main import build_parser
from jupyter_gpushare.deploy.kubernetes.dra.configuration import DRIVER, configuration
from jupyter_gpushare.deploy.kubernetes.dra.driver import Options
from jupyter_gpushare.deploy.kubernetes.dra.slices import Sharing

helm = pytest.importorskip("helm_python", reason="no Helm for this machine")

DEPLOY = Path(jupyter_gpushare.__file__).parent / "deploy"
CHART = DEPLOY / "helm" / "jupyter-gpushare"
MANIFESTS = DEPLOY / "kubernetes"
Z2JH = "values-z2jh-dra.yaml"
TEMPLATES = [
    {
        "name": "gpu-interactive",
        "namespace": "jhub",
        "class": "gpushare",
        "capacity": {"hostMemory": "20Gi"},
    },
    {
        "name": "gpu-background",
        "namespace": "jhub",
        "class": "gpushare",
        "config": {"class": "background", "limit": 0.5, "memory": "20GiB"},
    },
]
DRA = {"mode": "dra", "hubPage": {"enabled": True}, "dra": {"claimTemplates": TEMPLATES}}
Objects = dict[tuple[str, str], Any]


def render(values: dict[str, Any] | None = None) -> Objects:
    """Return the objects of the chart, by kind and name."""
    with helm.Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        texts = chart.render(values, name="share", namespace="gpushare")
    made = [
        each
        for name, text in texts.items()
        if name.endswith(".yaml")
        for each in yaml.safe_load_all(text)
        if each
    ]
    found = {(each["kind"], each["metadata"]["name"]): each for each in made}
    assert len(found) == len(made)
    return found


def manifest(name: str) -> Any:
    return yaml.safe_load((MANIFESTS / name).read_text())


def pod(found: Objects, name: str) -> Any:
    return found["DaemonSet", name]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def dra() -> Objects:
    return render(DRA)


def test_the_api_accepts_the_chart(dra: Objects) -> None:
    for version in ("1.34", kubernetes_validate.latest_version()):
        for each in dra.values():
            kubernetes_validate.validate(each, version, strict=True)
    for each in render().values():
        kubernetes_validate.validate(each, "1.32", strict=True)


def test_the_chart_and_the_manifests_start_the_same_pods() -> None:
    found = render()
    assert {kind for kind, _ in found} == {"ConfigMap", "DaemonSet", "ResourceQuota"}
    config, _ = manifest("kustomization.yaml")["configMapGenerator"]
    settings = dict(literal.split("=", 1) for literal in config["literals"])
    for name in ("scheduler", "device-plugin"):
        ours, theirs = pod(found, f"gpushare-{name}"), manifest(f"{name}.yaml")
        spec = theirs["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        container["args"] = [
            re.sub(r"\$\((\w+)\)", lambda match: settings[match[1]], word)
            for word in container["args"]
        ]
        # The chart writes the settings into the arguments.
        container.pop("envFrom", None)
        container["image"] = "registry.example.org/jupyter-gpushare:0.1.0"
        container["imagePullPolicy"] = "IfNotPresent"
        assert ours == spec
        chosen = found["DaemonSet", f"gpushare-{name}"]["spec"]
        assert chosen["selector"] == theirs["spec"]["selector"]
        for key in ("minReadySeconds", "updateStrategy"):
            assert chosen.get(key) == theirs["spec"].get(key)
        assert (
            chosen["template"]["metadata"]["labels"]
            == (theirs["spec"]["template"]["metadata"]["labels"])
        )
    quota = found["ResourceQuota", "gpushare-critical"]["spec"]
    assert quota == manifest("quota.yaml")["spec"]
    commented = (MANIFESTS / "gpushare.py").read_text().split('"""\n', 1)[1]
    lines = [line.split("  #")[0] for line in commented.splitlines() if line[:1] not in ("#", "")]
    # Only if there are hibernators.
    lines.remove(SOCKET_LINE)
    assert written_lines(found) == lines


SOCKET_LINE = 'c.NodeScheduler.hibernator_socket = "/run/gpushare-hibernator/hibernator.sock"'


def written_lines(found: Objects) -> list[str]:
    """Return the lines of the schedulers' configuration."""
    written = found["ConfigMap", "gpushare-scheduler"]["data"]["gpushare.py"]
    return [line for line in written.splitlines() if line.strip()]


@pytest.mark.parametrize("config", ["c = get_config()", "c = get_config()\n"])
def test_hibernators_are_used_whatever_the_configuration(config: str) -> None:
    values = {"scheduler": {"config": config}, "hibernator": {"enabled": True}}
    assert written_lines(render(values)) == [
        "c = get_config()",
        SOCKET_LINE.replace("c.", "get_config().", 1),
    ]


def test_the_hibernators_are_those_of_the_manifests() -> None:
    found = render({"hibernator": {"enabled": True, "hibernateAfter": 120}})
    for each in found.values():
        kubernetes_validate.validate(each, "1.32", strict=True)
    theirs = manifest("hibernation/hibernator.yaml")["spec"]
    (container,) = theirs["template"]["spec"]["containers"]
    container |= {
        "image": "registry.example.org/jupyter-gpushare:0.1.0",
        "imagePullPolicy": "IfNotPresent",
    }
    assert found["DaemonSet", "gpushare-hibernator"]["spec"] == theirs
    policy = manifest("hibernation/network.yaml")["spec"]
    assert found["NetworkPolicy", "gpushare-hibernator"]["spec"] == policy
    (scheduler,) = pod(found, "gpushare-scheduler")["containers"]
    options = build_parser("scheduler").parse_args(scheduler["args"])
    assert options.hibernate_after == 120
    assert ("DaemonSet", "gpushare-hibernator") not in render()


def test_the_dra_driver_is_that_of_the_manifests() -> None:
    kustomization = manifest("dra-driver/kustomization.yaml")
    (config,) = kustomization["configMapGenerator"]
    settings = dict(literal.split("=", 1) for literal in config["literals"])
    made = [
        each
        for name in kustomization["resources"]
        for each in yaml.safe_load_all((MANIFESTS / "dra-driver" / name).read_text())
    ]
    theirs = {(each["kind"], each["metadata"]["name"]): each for each in made}
    (container,) = pod(theirs, "gpushare-dra-driver")["containers"]
    container["args"] = [
        re.sub(r"\$\((\w+)\)", lambda match: settings[match[1]], word) for word in container["args"]
    ]
    # The chart writes the settings into the arguments.
    assert container.pop("envFrom") == [{"configMapRef": {"name": config["name"]}}]
    container |= {
        "image": "registry.example.org/jupyter-gpushare:0.1.0",
        "imagePullPolicy": "IfNotPresent",
    }
    ours = {
        key: each
        for key, each in render({"mode": "dra"}).items()
        if each["metadata"]["labels"].get("app.kubernetes.io/component") == "dra-driver"
    }
    assert {*theirs} == {*ours}
    for key, each in theirs.items():
        labels, more = (found["metadata"].pop("labels") for found in (each, ours[key]))
        assert labels.items() <= more.items()
        assert each == ours[key]
    assert kustomization["images"] == manifest("kustomization.yaml")["images"]


def test_the_hub_page_is_that_of_the_manifests(dra: Objects) -> None:
    theirs = manifest("hub/hub.yaml")["spec"]
    spec = theirs["template"]["spec"]
    (container,) = spec["containers"]
    container |= {
        "image": "registry.example.org/jupyter-gpushare:0.1.0",
        "imagePullPolicy": "IfNotPresent",
    }
    assert container.pop("envFrom")
    (config,) = manifest("hub/kustomization.yaml")["configMapGenerator"]
    given = [literal.split("=", 1) for literal in config["literals"]]
    container["env"] = [{"name": n, "value": value} for n, value in given] + container["env"]
    ours = dra["DaemonSet", "gpushare-hub"]["spec"]
    assert ours["template"]["spec"] == spec
    assert ours["template"]["metadata"]["labels"] == theirs["template"]["metadata"]["labels"]
    for name in ("service", "nodes"):
        service = manifest(f"hub/{name}.yaml")
        assert dra["Service", service["metadata"]["name"]]["spec"] == service["spec"]


def test_a_change_of_the_configuration_replaces_the_pods_and_no_config_map_is_left() -> None:
    found = [render({"scheduler": {"config": f"c.NodeScheduler.quantum = {n}\n"}}) for n in (1, 2)]
    maps = [[name for kind, name in each if kind == "ConfigMap"] for each in found]
    assert maps == [["gpushare-scheduler"]] * 2
    sums = {
        each["DaemonSet", "gpushare-scheduler"]["spec"]["template"]["metadata"]["annotations"][
            "checksum/config"
        ]
        for each in found
    }
    assert len(sums) == 2


def test_the_driver_accepts_its_arguments_and_has_what_it_needs(dra: Objects) -> None:
    assert ("DaemonSet", "gpushare-device-plugin") not in dra
    spec = pod(dra, "gpushare-dra-driver")
    (container,) = spec["containers"]
    args = build_parser("dra-driver").parse_args(container["args"])
    assert (args.kubelet_dir, args.cdi_dir, args.state_dir) == (KUBELET, CDI, STATE)
    env = {each["name"]: each for each in container["env"]}
    assert env["GPUSHARE_NODE_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    on_node = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"]}
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    assert {name: each["mountPath"] for name, each in mounts.items()} == on_node
    options = Options("n", args.kubelet_dir, Sharing(1, 1), None, 1, 1)
    assert {Path(each["mountPath"]) for each in mounts.values() if not each.get("readOnly")} == {
        options.registry.parent,
        options.endpoint.parent.parent,
        args.cdi_dir,
        args.state_dir,
        args.library_dir,
    }
    assert {each["mountPath"] for each in mounts.values() if each.get("readOnly")} == {
        str(args.socket.parent)
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & {*spec}
    security = pod(dra, "gpushare-scheduler")["containers"][0]["securityContext"]
    assert container["securityContext"] == security
    account = spec["serviceAccountName"]
    binding = dra["ClusterRoleBinding", "gpushare-dra-driver"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account, "namespace": "gpushare"}
    ]
    assert ("ServiceAccount", account) in dra
    rules = dra["ClusterRole", binding["roleRef"]["name"]]["rules"]
    assert {rule["resources"][0]: rule["verbs"] for rule in rules} == {
        "resourceslices": ["list", "create", "update", "delete"],
        "resourceclaims": ["get"],
        "nodes": ["get"],
    }
    (condition,) = dra["ValidatingAdmissionPolicy", "gpushare-dra-driver"]["spec"][
        "matchConditions"
    ]
    assert f"system:serviceaccount:gpushare:{account}" in condition["expression"]
    given = render({**DRA, "dra": {"hostMemory": "200GiB", "memoryOvercommit": 1.5}})
    (container,) = pod(given, "gpushare-dra-driver")["containers"]
    args = build_parser("dra-driver").parse_args(container["args"])
    assert (args.host_memory, args.memory_overcommit) == (200 << 30, 1.5)


def test_classes_and_templates_state_what_the_driver_reads(dra: Objects) -> None:
    class_ = dra["DeviceClass", "gpushare"]["spec"]
    assert class_["extendedResourceName"] == "jupyter-gpushare/gpu-share"
    assert class_["selectors"][0]["cel"]["expression"] == f'device.driver == "{DRIVER}"'
    (of_class,) = class_["config"]
    shares = {}
    for name in ("gpu-interactive", "gpu-background"):
        devices = dra["ResourceClaimTemplate", name]["spec"]["spec"]["devices"]
        (request,) = devices["requests"]
        assert request["exactly"]["deviceClassName"] == "gpushare"
        allocated = [{"source": "FromClass", **of_class}]
        allocated += [{"source": "FromClaim", **each} for each in devices.get("config", ())]
        shares[name] = configuration(allocated)
    assert shares["gpu-interactive"].shares == {}
    assert shares["gpu-background"].priority == "background"
    assert shares["gpu-background"].shares == {"limit": 0.5, "memory": 20 << 30}
    taken = dra["ResourceClaimTemplate", "gpu-interactive"]["spec"]["spec"]["devices"]["requests"]
    assert taken[0]["exactly"]["capacity"] == {"requests": {"hostMemory": "20Gi"}}


@pytest.mark.parametrize(
    "values",
    [
        {"mode": "both"},
        {"slotsPerGpu": 4},
        {"devicePlugin": {"slotsPerGpu": 0}},
        {"dra": {"classes": [{"name": "Big GPU"}]}},
        {"dra": {"classes": [{"name": "big", "config": {"gpus": 1}}]}},
        {"dra": {"classes": [{"name": "big", "config": {"maximum": {"class": "auto"}}}]}},
        {"dra": {"claimTemplates": [{**TEMPLATES[0], "config": {"maximum": {}}}]}},
        {"dra": {"claimTemplates": [{"name": "a", "class": "gpushare"}]}},
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmError):
        render(values)


def test_each_value_is_in_the_schema_and_is_explained() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    text = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)
    assert {*values} == {*schema} - {"global"}
    for section in ("image", "quota", "scheduler", "hibernator", "hubPage", "devicePlugin", "dra"):
        assert {*values[section]} == {*schema[section]["properties"]}
    plain = {"imagePullSecrets", "priorityClassName", "tolerations", "pullPolicy", "resources"}
    lines = text.splitlines()
    unexplained = [
        match[1]
        for before, line in pairwise(lines)
        if (match := re.match(r"(?:  )?(\w+):", line))
        and not before.strip().startswith("#")
        and match[1] not in plain
    ]
    assert unexplained == []


def test_helm_has_no_complaint(capfd: pytest.CaptureFixture[str]) -> None:
    for values in ({}, DRA):
        found = helm.lint(str(CHART), values, kube_version="v1.36.0")
        assert found["errors"] == []
        assert {each["error"] for each in found["messages"]} == {"icon is recommended"}
    # Where helm install would fail, helm lint writes a message.
    assert "mode dra needs" not in capfd.readouterr().err
    helm.lint(str(CHART), DRA, kube_version="v1.33.0")
    assert "mode dra needs Kubernetes 1.34 or newer, but the cluster has v1.33.0" in (
        capfd.readouterr().err
    )


def test_the_chart_has_the_version_of_the_project() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == jupyter_gpushare.__version__


def examples(root: Path) -> list[dict[str, Any]]:
    """Return the YAML documents of the pages."""
    texts = [(root / "docs" / "how-to" / "admin" / name).read_text() for name in PAGES]
    blocks = [textwrap.dedent(block) for text in texts for block in BLOCK.findall(text)]
    return [each for block in blocks for each in yaml.safe_load_all(block)]


PAGES = ("dra.md", "helm.md")
BLOCK = re.compile(r"(?ms)^ *```yaml\n(.*?)^ *```$")


def test_examples_of_the_pages_are_valid(root: Path) -> None:
    found = examples(root)
    for each in found:
        if "apiVersion" in each:
            kubernetes_validate.validate(each, "1.34", strict=True)
    (template,) = (each for each in found if each.get("kind") == "ResourceClaimTemplate")
    (config,) = template["spec"]["spec"]["devices"]["config"]
    assert configuration([config]).shares == {"limit": 0.5, "memory": 20 << 30}
    rendered = [render(each) for each in found if {"image", "dra"} & {*each}]
    assert len(rendered) == 2
    assert ("DeviceClass", "gpushare-large") in rendered[0]


# --- Zero to JupyterHub ---------------------------------------------------------------------------


def test_profiles_of_the_hub_request_templates_of_the_chart(dra: Objects) -> None:
    values = manifest(Z2JH)
    hook: dict[str, Any] = {"c": SimpleNamespace(KubeSpawner=SimpleNamespace())}
    exec(values["hub"]["extraConfig"]["gpushare"], hook)
    modify = hook["c"].KubeSpawner.modify_pod_hook
    for profile in values["singleuser"]["profileList"]:
        labels = profile.get("kubespawner_override", {}).get("extra_labels")
        limits = {"memory": "64G"}
        container = SimpleNamespace(resources=SimpleNamespace(limits=limits, claims=None))
        made = modify(
            None,
            SimpleNamespace(
                metadata=SimpleNamespace(labels=labels),
                spec=SimpleNamespace(resource_claims=None, containers=[container]),
            ),
        )
        if labels is None:
            assert made.spec.resource_claims is None
            continue
        (claim,) = made.spec.resource_claims
        assert ("ResourceClaimTemplate", claim["resourceClaimTemplateName"]) in dra
        spec = {
            "resourceClaims": made.spec.resource_claims,
            "containers": [
                {
                    "name": "notebook",
                    "image": "notebook",
                    "resources": {"limits": limits, "claims": container.resources.claims},
                }
            ],
        }
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "jupyter-ada"}, "spec": spec},
            "1.34",
            strict=True,
        )


def test_both_hubs_are_configured_alike() -> None:
    plugin, driver = manifest("values-z2jh.yaml"), manifest(Z2JH)
    assert driver["hub"].pop("extraConfig")
    assert driver["hub"] == plugin["hub"]
    for ours in (plugin["singleuser"], driver["singleuser"]):
        for key in ("extraResource", "extraPodConfig", "profileList"):
            ours.pop(key, None)
    assert driver["singleuser"] == plugin["singleuser"]
