"""Nodes with labels: a job, or a gate, says by them where a group's ranks stand; one that fits nowhere is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import runfold as api
from support.commands import Commands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WHERE = """
import runfold
def train():
    return runfold.all_gather(runfold.get_context().get_node_rank())
"""


class Sends(api.ControllerCallback):
    """Sends every group to nodes with a label."""

    def __init__(self, zone: str) -> None:
        self.zone = zone

    def on_controller_start_worker_group(self, *, scaling_config: object, num_workers: int) -> Mapping[str, str] | None:
        return {"zone": self.zone}


@pytest.fixture(scope="module")
def zones(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Commands beside a service of two nodes in two zones."""
    commands = Commands(tmp_path_factory.mktemp("zones"))
    commands.write("jobs.py", WHERE)
    labels = ("--label", "local-0:zone=a", "--label", "local-1:zone=b", "--label", "tier=spot")
    try:
        with commands.service("--nodes", "2", "--slots", "2", *labels):
            yield commands
    finally:
        commands.end()


def where(status: dict[str, object]) -> list[object]:
    """The node of each rank."""
    ranks = status["ranks"]
    assert isinstance(ranks, list)
    return [rank["node"] for rank in ranks]


@pytest.mark.parametrize(
    ("selector", "nodes"),
    [
        ('{"zone": "b"}', ["local-1", "local-1"]),
        ('{"runfold.node": "local-1"}', ["local-1", "local-1"]),
        ('{"tier": "spot", "zone": "!b"}', ["local-0", "local-0"]),
        ('[{"zone": "b"}, {"zone": "a"}]', ["local-0", "local-1"]),
    ],
)
def test_a_job_says_by_labels_where_its_ranks_stand(zones: Commands, selector: str, nodes: list[str]) -> None:
    done = zones.ok(
        *("run", "jobs.py:train", "--workers", "2", "--set", f"scaling.label_selector={selector}", "-o", "json")
    )
    assert where(done.document) == nodes


def test_a_selector_that_no_node_fulfils_ends_the_run_and_is_named(zones: Commands) -> None:
    done = zones("run", "jobs.py:train", "--set", 'scaling.label_selector={"zone": "c"}', "-o", "json")
    assert done.code == 1
    error = done.document["error"]
    assert isinstance(error, dict)
    assert error["kind"] == "placement"
    assert "no node of this pool fulfils the label selector zone=c" in error["message"]
    assert "local-0 has " in error["message"]


@pytest.mark.parametrize("zone", ["a", "b"])
def test_a_gate_says_so_too(zones: Commands, zone: str) -> None:
    result = api.Trainer(
        lambda config: api.get_context().get_node_rank(),
        train_loop_config={},
        run_config=api.RunConfig(name=f"sent-{zone}", data_dir=zones.data, callbacks=(Sends(zone),)),
    ).fit()
    assert where(zones.ended(result.run)) == ["local-0" if zone == "a" else "local-1"]


def test_a_label_that_is_none_is_refused(runfold: Commands) -> None:
    for label, why in (
        ("zone", "KEY=VALUE"),
        ("=b", "KEY=VALUE"),
        ("elsewhere:zone=b", "names no node; there are local-0, local-1"),
        ("runfold.node=x", "runfold's own"),
    ):
        refused = runfold("up", "--nodes", "2", "--label", label)
        assert (refused.code, why in refused.err) == (2, True), refused.err
