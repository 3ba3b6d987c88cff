"""The dashboard and the alert rules ask for metrics that there are, and each alert is explained."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiolocks import LockEvent
from aiolocks.contrib.prometheus import PrometheusListener

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "docs" / "assets" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "grafana-dashboard.json").read_text())
(GROUP,) = yaml.safe_load((MONITORING / "prometheus-rules.yml").read_text())["groups"]
ALERTS = {rule["alert"]: rule for rule in GROUP["rules"]}
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
ASKED = [
    *(rule["expr"] for rule in ALERTS.values()),
    *(target["expr"] for target in TARGETS),
    *(variable["query"]["query"] for variable in VARIABLES.values() if variable["type"] == "query"),
]


@pytest.fixture
def samples(registry) -> dict[str, set[str]]:
    """The labels of each series that is scraped."""
    listener = PrometheusListener(registry=registry)
    listener.on_acquired(LockEvent(kind="lock", name="a"))
    listener.on_ran(LockEvent(kind="schedule", name="a", reason="done"))
    listener.on_admitted(LockEvent(kind="ratelimit", name="a"))
    listener.on_left(LockEvent(kind="combiner", name="a"))
    listener.on_timeout(LockEvent(kind="singleflight", name="a"))
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return {name: labels for name, labels in found.items() if not name.endswith("_created")}


def test_they_ask_for_metrics_and_labels_that_there_are(samples) -> None:
    for asked in ASKED:
        names = {*re.findall(r"\baiolocks_\w+", asked)}
        assert names, asked
        assert names <= samples.keys(), asked
        labels = {label for listed in re.findall(r"\bby \(([^)]*)\)", asked) for label in listed.split(", ")}
        labels |= {*re.findall(r"(\w+)=~?\"", asked)}
        assert all(labels <= samples[name] for name in names), asked
        # A quantile needs the bounds, and everything that only rises is looked at by its rise.
        assert ("histogram_quantile" not in asked) or "le)" in asked
        for name in names:
            if name.endswith(("_total", "_bucket")) and "label_values" not in asked:
                assert re.search(rf"\b(?:rate|increase)\({name}\b", asked), asked
        assert asked.count("(") == asked.count(")")


def test_the_dashboard_shows_all_metrics(samples) -> None:
    shown = {*re.findall(r"\baiolocks_\w+", " ".join(target["expr"] for target in TARGETS))}
    assert {name.removesuffix("_bucket") for name in shown} == {
        re.sub("_(bucket|count|sum)$", "", name) for name in samples
    }


def test_the_dashboard_is_well_formed() -> None:
    panels = DASHBOARD["panels"]
    assert [panel["id"] for panel in panels] == [*range(1, len(panels) + 1)]
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        taken = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} lies on another panel"
        cells |= taken
        assert panel["title"]
        assert panel["description"]
        references = [target["refId"] for target in panel["targets"]]
        assert len({*references}) == len(references)
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"
    assert {x for x, _ in cells} == {*range(24)}
    used = {*re.findall(r"\$\{?(\w+)", json.dumps(panels))} - {"__rate_interval", "__range"}
    assert used == VARIABLES.keys()


def test_the_rules_are_well_formed() -> None:
    assert len(ALERTS) == len(GROUP["rules"])
    for rule in ALERTS.values():
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"summary", "description"}
        assert "{{ $labels.name }}" in rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+m", rule.get("for", "0m"))


def test_each_alert_is_explained() -> None:
    page = (ROOT / "docs/how-to/monitor.md").read_text()
    sections = re.findall(r"^### ((?:Lock|Schedule)\w+)$", page, re.MULTILINE)
    assert sections == [*ALERTS]
    numbers = {"nine": 9}
    assert numbers[re.search(r", (\w+) alert rules", page)[1]] == len(ALERTS)
