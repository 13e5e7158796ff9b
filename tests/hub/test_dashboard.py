# SPDX-License-Identifier: BSD-3-Clause
"""The Grafana dashboard uses existing metrics and labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.scheduler.observability.metrics import METRICS

#: Suffixes of the parts of a histogram in the text format.
PARTS = ("_bucket", "_count", "_sum")
#: Labels that Prometheus adds for every node, and histograms for every bucket.
EVERYWHERE = {"node", "le"}


@pytest.fixture(scope="module")
def dashboard(root: Path) -> Any:
    return json.loads((root / "deploy" / "grafana" / "gpushare.json").read_text())


def queries(dashboard: Any) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def metric(name: str) -> str:
    for part in PARTS:
        if (
            METRICS.get(whole := name.removesuffix(part), METRICS["gpushare_up"]).kind
            == "histogram"
        ):
            return whole
    return name


def test_every_metric_and_label_exists(dashboard: Any) -> None:
    asked = list(queries(dashboard))
    assert len(asked) > 10
    for query in asked:
        names = {metric(name) for name in re.findall(r"\bgpushare_\w+", query)}
        assert names, query
        assert names <= METRICS.keys(), query
        labels = {label for name in names for label in METRICS[name].labels} | EVERYWHERE
        used = set(re.findall(r"[{,]\s*(\w+)\s*[!=]", query))
        for listed in re.findall(r"(?:by|on|group_left) \(([^)]*)\)", query):
            used |= {label.strip() for label in listed.split(",")}
        assert used <= labels, query


def test_legends_use_labels_that_the_query_keeps(dashboard: Any) -> None:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = re.search(r"\bby \(([^)]*)\)", target["expr"])
            if kept is not None:
                assert wanted <= {label.strip() for label in kept[1].split(",")}, target["expr"]


def test_panels_do_not_overlap(dashboard: Any) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
