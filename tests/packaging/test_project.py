# SPDX-License-Identifier: BSD-3-Clause
"""What the project says about itself agrees: addresses, citation, workflows, issue forms."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import jupyter_gpushare


@pytest.fixture(scope="module")
def hatch_build(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", root / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def urls(root: Path) -> dict[str, str]:
    section = (root / "pyproject.toml").read_text().split("[project.urls]\n")[1].split("\n\n")[0]
    return dict(re.findall(r'^(\w+) = "(.*)"$', section, re.M))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_urls_are_complete(root: Path) -> None:
    found = urls(root)
    assert set(found) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert found["Issues"] == f"{found['Source']}/issues"
    assert found["Changelog"] == f"{found['Source']}/blob/HEAD/CHANGELOG.md"


def test_all_files_agree_on_the_addresses(root: Path) -> None:
    found = urls(root)
    listed = subprocess.run(
        ["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True
    )
    wrong = []
    for name in listed.stdout.splitlines():
        if not name.endswith(
            (".cff", ".json", ".md", ".py", ".toml", ".ts", ".tsx", ".yaml", ".yml")
        ):
            continue
        for url in re.findall(
            r"https://(?:github\.com/[\w.-]+/|[\w.-]*readthedocs\.io/|[\w.-]+\.readthedocs\.io)[\w./-]*",
            (root / name).read_text(encoding="utf-8"),
        ):
            ours = "jupyter-gpushare" in url
            if ours and not url.startswith((found["Source"], found["Documentation"].rstrip("/"))):
                wrong.append(f"{name}: {url}")
    assert wrong == []


def test_citation_is_of_this_version(root: Path) -> None:
    citation = load(root / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == jupyter_gpushare.__version__
    assert citation["repository-code"] == urls(root)["Source"]
    assert {"title", "message", "authors", "license"} <= set(citation)


def test_links_of_the_readme_become_absolute(hatch_build: ModuleType) -> None:
    page = (
        "![a picture](docs/images/a.png) [page](docs/b.md#part) [part](#part) [site](https://c.example/)\n"
        "[![badge](docs/badge.svg)](docs/d.md)"
    )
    assert hatch_build.absolute_links(page, "https://x.example/y") == (
        "![a picture](https://x.example/y/raw/HEAD/docs/images/a.png) "
        "[page](https://x.example/y/blob/HEAD/docs/b.md#part) [part](#part) [site](https://c.example/)\n"
        "[![badge](https://x.example/y/raw/HEAD/docs/badge.svg)](https://x.example/y/blob/HEAD/docs/d.md)"
    )


def report(folder: Path, *packages: tuple[str, str, str]) -> Path:
    """Write what a builder reports of the packages that it bundled: name, version, licence."""
    path = folder / f"{len(list(folder.iterdir()))}.json"
    fields = ("name", "versionInfo", "licenseId")
    path.write_text(json.dumps({"packages": [dict(zip(fields, p, strict=True)) for p in packages]}))
    return path


def test_the_sbom_lists_each_bundled_package_once(hatch_build: ModuleType, tmp_path: Path) -> None:
    reports = [
        report(tmp_path, ("react", "18.3.1", "MIT"), ("odd", "1.0.0", "")),
        report(tmp_path, ("@lumino/polling", "2.1.5", "BSD-3-Clause"), ("react", "18.3.1", "MIT")),
    ]
    sbom = hatch_build.bill_of_materials("0.1.0", reports)
    assert sbom["metadata"]["component"]["purl"] == "pkg:pypi/jupyter-gpushare@0.1.0"
    assert [(c["purl"], c.get("licenses")) for c in sbom["components"]] == [
        ("pkg:npm/%40lumino/polling@2.1.5", [{"expression": "BSD-3-Clause"}]),
        ("pkg:npm/odd@1.0.0", None),
        ("pkg:npm/react@18.3.1", [{"expression": "MIT"}]),
    ]
    assert [(c.get("group"), c["name"]) for c in sbom["components"]] == [
        ("@lumino", "polling"),
        (None, "odd"),
        (None, "react"),
    ]


def test_a_missing_report_says_what_to_build(hatch_build: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(hatch_build.BuildError, match="jlpm build:prod"):
        hatch_build.bill_of_materials("0.1.0", [tmp_path / "absent.json"])


def test_the_description_reads_everywhere(root: Path) -> None:
    core = ProjectMetadata(str(root), PluginManager()).core
    assert core.readme_content_type == "text/markdown"
    assert core.readme.startswith("# jupyter-gpushare")
    assert not re.findall(r"\]\((?![a-z]+:|#)[^)]*\)", core.readme)
    # An unknown one is an error.
    assert "Typing :: Typed" in core.classifiers


def test_workflows_run_what_developers_run(root: Path) -> None:
    commands = {}
    for path in sorted((root / ".github" / "workflows").glob("*.yml")):
        workflow = load(path)
        # YAML reads the key `on` as true.
        assert {"name", True, "permissions", "jobs"} <= set(workflow), path
        for name, job in workflow["jobs"].items():
            assert "timeout-minutes" in job, (path, name)
            commands[name] = [step["run"] for step in job["steps"] if "run" in step]
    assert commands["test"] == ["make test"]
    assert commands["demo"] == ["make demo"]
    assert commands["sdist"] == ["make build"]
    assert any("cibuildwheel" in command for command in commands["wheels"])


def test_issue_forms_are_well_formed(root: Path) -> None:
    forms = sorted((root / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert {path.stem for path in forms} == {"bug", "config", "feature", "measurement"}
    for path in forms:
        form = load(path)
        if path.stem == "config":
            assert all({"name", "url", "about"} == set(link) for link in form["contact_links"])
            continue
        assert {"name", "description", "body"} <= set(form)
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields)
        for field in fields:
            assert field["type"] in ("input", "textarea", "dropdown", "checkboxes"), path
            assert field["attributes"]["label"], path
            assert ("options" in field["attributes"]) == (field["type"] == "dropdown"), path
