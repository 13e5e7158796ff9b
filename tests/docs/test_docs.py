# SPDX-License-Identifier: BSD-3-Clause
"""The documentation builds without a warning, its links lead somewhere, and what it says of the code is so."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from traitlets.config import Config, Configurable

from jupyter_gpushare.cli.main import COMMANDS, build_parser
from jupyter_gpushare.hub.config import GpuShareHub
from jupyter_gpushare.kernel_provisioner import GpuShareProvisioner
from jupyter_gpushare.kernel_provisioner.in_kernel.verbs import VERBS, usage
from jupyter_gpushare.kernel_provisioner.launch import SHARES
from jupyter_gpushare.scheduler.node.config import NodeScheduler
from jupyter_gpushare.scheduler.views.words.reasons import REASONS
from jupyter_gpushare.server_extension.config import GpuShare

#: The classes whose settings the documentation lists.
CONFIGURABLES = (GpuShare, GpuShareProvisioner, NodeScheduler, GpuShareHub)

#: The sources of the messages that the page of messages quotes.
SOURCES = (
    "cli/**/*.py",
    "csrc/interposer/*/*.c",
    "kernel_provisioner/**/*.py",
    "labextension/src/**/*.ts",
    "scheduler/**/*.py",
    "server_extension/*.py",
)


class Page(HTMLParser):
    """What a page refers to, what it loads, and what can be referred to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        self.anchors.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") == "stylesheet":
            self.loaded.append(found["href"])
        elif "src" in found:
            self.loaded.append(found["src"])


@pytest.fixture(scope="module")
def pages(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """Return the built pages."""
    out = tmp_path_factory.mktemp("docs")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going"),
            *("--doctree-dir", str(out / "doctrees"), str(root / "docs"), str(out / "html")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {path: Page(path) for path in (out / "html").resolve().rglob("*.html")}


def written(root: Path) -> set[str]:
    """Return the names of the pages; what they include is not one."""
    found = (root / "docs").rglob("*.md")
    return {path.stem for path in found if "_includes" not in path.parts}


def test_every_page_is_built(root: Path, pages: dict[Path, Page]) -> None:
    assert written(root) <= {path.stem for path in pages}


def test_links_lead_somewhere(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            wanted = unquote(parts.fragment)
            known = pages[target].anchors if target in pages else {""}
            if not target.is_file() or wanted not in known | {""}:
                broken.append(f"{path.name}: {link}")
    assert not broken


def test_pages_lead_to_the_glossary(root: Path, pages: dict[Path, Page]) -> None:
    names = written(root)
    assert not [
        path.name
        for path, page in pages.items()
        if path.stem in names and "glossary-link" not in page.anchors
    ]


def test_pages_load_nothing_from_elsewhere(pages: dict[Path, Page]) -> None:
    assert any(page.loaded for page in pages.values())
    assert not [link for page in pages.values() for link in page.loaded if urlsplit(link).netloc]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_into_the_documentation_lead_somewhere(
    root: Path, pages: dict[Path, Page], name: str
) -> None:
    built = {str(path).split("/html/")[1]: page for path, page in pages.items()}
    links = re.findall(r"\]\(([^)#:]+)(?:#([^)]*))?\)", (root / name).read_text())
    assert links
    assert not [link for link, _ in links if not (root / link).exists()]
    assert not [
        f"{link}#{anchor}"
        for link, anchor in links
        if anchor
        and anchor not in built[link.removeprefix("docs/").replace(".md", ".html")].anchors
    ]


def test_pages_that_sources_name_exist(root: Path) -> None:
    named = {
        name
        for glob in SOURCES
        for path in root.glob(glob)
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert named
    assert not sorted(name for name in named if not (root / name).is_file())


def test_settings_and_commands_are_those_of_the_code(pages: dict[Path, Page]) -> None:
    text = {path.stem: path.read_text() for path in pages}
    for configurable in CONFIGURABLES:
        for name in configurable.class_own_traits(config=True):
            assert f">{name}<" in text["settings"]
    # Words of code are marked one by one.
    magic = text["magic"].replace('</span> <span class="pre">', " ")
    for verb, (_, meaning) in VERBS.items():
        assert f">{escape(usage(verb))}<" in magic
        assert escape(meaning, quote=False) in magic
    for command in COMMANDS:
        assert f'id="gpushare-{command}"' in text["commands"]
        assert f"usage: gpushare {command} " in text["commands"]


@pytest.mark.parametrize("configurable", CONFIGURABLES)
def test_the_code_accepts_each_example_of_a_setting(
    root: Path, configurable: type[Configurable], monkeypatch: pytest.MonkeyPatch
) -> None:
    # conf.py sets the width of help texts.
    monkeypatch.setenv("COLUMNS", "80")
    examples = runpy.run_path(str(root / "docs" / "conf.py"))["EXAMPLES"][configurable]
    assert examples.keys() == configurable.class_own_traits(config=True).keys()
    for name, example in examples.items():
        config = Config({configurable.__name__: {name: ast.literal_eval(example)}})
        assert getattr(configurable(config=config), name) not in (None, "", [], {})


def commands(text: str) -> Iterator[list[str]]:
    """Return the arguments of ``gpushare`` in the lines of code of a page."""
    blocks = re.findall(r"^ *```(?:sh)?\n(.*?)^ *```", text, re.M | re.S)
    lines = "\n".join(blocks).replace("\\\n", " ") + "\n"
    lines += "\n".join(re.findall(r"^ {4,}(.*)$", text.replace("\\\n", " "), re.M))
    for line in re.findall(r"^ *(?:sudo +|\w+=\S* +)*(?:/\S+/)?gpushare +(.*)$", lines, re.M):
        words = shlex.split(line, comments=True)
        ends = [at for at, word in enumerate(words) if word in ("&&", "|", ">")]
        yield words[: ends[0]] if ends else words


def test_commands_in_pages_are_understood(root: Path) -> None:
    found = [
        words
        for path in (root / "README.md", *root.glob("docs/**/*.md"))
        for words in commands(path.read_text())
        if words[0] in COMMANDS
    ]
    assert len(found) > 30
    for words in found:
        build_parser(words[0]).parse_args(words)


def test_modules_that_are_named_exist(root: Path) -> None:
    text = "\n".join(path.read_text() for path in (*root.glob("*.md"), *root.glob("docs/**/*.md")))
    run = set(re.findall(r"python -m ((?:jupyter_gpushare|tests)[\w.]*)", text))
    imported = set(re.findall(r"from (jupyter_gpushare[\w.]*) import (\w+)", text))
    assert run
    assert imported
    assert not sorted(name for name in run if importlib.util.find_spec(name) is None)
    assert not sorted(
        (module, name)
        for module, name in imported
        if not hasattr(importlib.import_module(module), name)
    )


@pytest.mark.parametrize(
    ("row", "package"),
    [
        ("`jupyter_server`", "jupyter_server"),
        ("`jupyter_client`", "jupyter_client"),
        ("ipykernel", "ipykernel"),
        ("JupyterLab", "jupyterlab"),
        ("Notebook", "notebook"),
        ("JupyterHub", "jupyterhub"),
    ],
)
def test_lowest_versions_are_those_of_the_project(root: Path, row: str, package: str) -> None:
    page = (root / "docs" / "reference" / "compatibility.md").read_text()
    (stated,) = re.findall(rf"^\| {re.escape(row)} \| ([\d.]+) \|", page, re.M)
    project = (root / "pyproject.toml").read_text()
    (declared,) = re.findall(rf'"{package}>=([\d.]+)"', project)
    assert stated == declared


def test_buttons_of_the_hub_page_are_those_of_the_code(root: Path) -> None:
    page = (root / "docs" / "how-to" / "admin" / "hub-page.md").read_text()
    _, found, rows = page.partition("| button | effect |\n|---|---|\n")
    assert found
    words = (root / "hub" / "page" / "text.ts").read_text()
    for row in rows.split("\n\n")[0].splitlines():
        assert f"'{row.split(' | ')[0].removeprefix('| ')}'" in words


def test_files_that_are_named_exist(root: Path) -> None:
    folders = "benchmarks|cli|csrc|deploy|examples|hub|kernel_provisioner|labextension|scheduler"
    name = re.compile(rf"`((?:{folders}|server_extension|tests|tools)/[\w./*-]+)`")
    pages = (*root.glob("*.md"), *root.glob("docs/**/*.md"))
    named = {found for page in pages for found in name.findall(page.read_text())}
    assert named
    assert not sorted(found for found in named if not list(root.glob(found)))


def test_all_kernelspec_keys_are_documented(root: Path) -> None:
    text = (root / "docs" / "reference" / "kernelspec.md").read_text()
    keys = re.findall(r"^\| `(\w+)` \|", text, re.M)
    assert sorted(keys) == sorted(["enabled", "backend", "oversubscribe", *SHARES])


def test_each_code_has_an_anchor(root: Path, pages: dict[Path, Page]) -> None:
    (page,) = (page for path, page in pages.items() if path.stem == "messages")
    words = (root / "labextension" / "src" / "words" / "availability.ts").read_text()
    codes = {*REASONS, *re.findall(r"case '(\w+)':", words)} - {"ok"}
    assert not sorted(code for code in codes if code.replace("_", "-") not in page.anchors)


def test_quoted_messages_are_those_of_the_code(root: Path) -> None:
    said = "\n".join(
        path.read_text(encoding="utf-8") for glob in SOURCES for path in sorted(root.glob(glob))
    )
    # Literals that are broken into lines are one.
    said = re.sub(r"[\"']\s*\n\s*f?[\"']", "", said)
    quotes = re.findall(
        r"^> `(.*)`$", (root / "docs" / "reference" / "messages.md").read_text(), re.M
    )
    assert len(quotes) > 12
    pieces = [piece.strip() for quote in quotes for piece in quote.split("…")]
    assert not [piece for piece in pieces if piece not in said]
