"""TPU slices by table: chips, hosts, ranks a slice, and what a configuration may ask for."""

from __future__ import annotations

import pytest

from runfold.events.config import ScalingConfig
from runfold.events.slices import pod_order, slice_of, slices_for, whole_slices


@pytest.mark.parametrize(
    ("topology", "kind", "chips", "per_host", "hosts"),
    [
        ("2x2x1", "v4", 4, 4, 1),
        ("2x2x2", "v4", 8, 4, 2),
        ("4x4x4", "TPU-V5P", 64, 4, 16),
        ("2x2", "v5litepod", 4, 4, 1),
        ("2x4", "v5litepod", 8, 8, 1),
        ("4x4", "v5litepod-16", 16, 4, 4),
        ("2x4", "TPU-V6E", 8, 8, 1),
        ("1x1", "v6e", 1, 1, 1),
        ("4x8", "v6e", 32, 4, 8),
        ("4x4", "v5e", 16, 4, 4),
        ("2x4", "v2", 8, 4, 2),
        ("4x4", "v3-32", 16, 4, 4),
        ("2x2x2", "v7x", 8, 4, 2),
    ],
)
def test_a_slice_has_chips_and_hosts(topology: str, kind: str, chips: int, per_host: int, hosts: int) -> None:
    found = slice_of(topology, kind)
    assert (found.chips, found.chips_per_host, found.hosts) == (chips, per_host, hosts)
    assert found.host_resources == {"CPU": 1.0, "TPU": per_host}


@pytest.mark.parametrize(
    ("topology", "kind", "match"),
    [
        ("4", "v4", "topology"),
        ("4x", "v4", "topology"),
        ("0x4", "v4", "each dimension"),
        ("9999x9999", "v4", "each dimension"),
        ("3x3", "v4", "no whole number of hosts of 4"),
        ("2x2", "v99", "accelerator_type: 'v99' is no TPU"),
        ("2x2", "A100", "accelerator_type"),
    ],
)
def test_what_is_no_slice_is_said(topology: str, kind: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        slice_of(topology, kind)


@pytest.mark.parametrize(("each", "workers"), [(4, 4), (8, 2), (1, 16), (16, 1), (32, 0), (0, 0), (0.5, 32)])
def test_so_many_workers_fill_a_slice(each: float, workers: int) -> None:
    assert slice_of("4x4", "v4").workers(each) == workers


@pytest.mark.parametrize(
    ("fits", "each", "intact", "ranks"),
    [(0, 4, None, 0), (3, 4, None, 0), (4, 4, None, 4), (11, 4, None, 8), (11, 4, 1, 4), (11, 4, 0, 0), (11, 0, 9, 0)],
)
def test_only_whole_slices_count(fits: int, each: int, intact: int | None, ranks: int) -> None:
    assert whole_slices(fits, each, intact) == ranks


@pytest.mark.parametrize(("ranks", "each", "slices"), [(4, 4, 1), (5, 4, 2), (8, 4, 2), (8, 0, 1)])
def test_so_many_slices_are_needed(ranks: int, each: int, slices: int) -> None:
    assert slices_for(ranks, each) == slices


def test_hosts_of_a_pod_stand_together_in_their_order() -> None:
    hosts = [("b", 1, "n1"), ("a", 0, "n2"), ("b", 0, "n3"), ("a", 1, "n4")]
    assert pod_order(hosts) == ("n3", "n1", "n2", "n4")


# --- what a configuration may ask for


def test_workers_of_a_slice_have_a_host_each_unless_said_otherwise() -> None:
    each = ScalingConfig(num_workers=4, use_tpu=True, topology="4x4", accelerator_type="v4")
    assert each.worker_resources == {"CPU": 1.0, "TPU": 4.0}
    two = ScalingConfig(
        num_workers=8, use_tpu=True, topology="4x4", accelerator_type="v4", resources_per_worker={"TPU": 2}
    )
    assert two.worker_resources == {"TPU": 2.0}
    assert two.slice is not None
    assert ScalingConfig(use_tpu=True).worker_resources == {"TPU": 1.0}
    assert ScalingConfig(use_tpu=True, resources_per_worker={"CPU": 2}).worker_resources == {"CPU": 2.0, "TPU": 1.0}


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"num_workers": 2}, "topology: more than one TPU worker needs topology and accelerator_type"),
        ({"num_workers": 2, "topology": "4x4"}, "topology: more than one"),
        (
            {"num_workers": 4, "topology": "4x4", "accelerator_type": "v4", "label_selector": {"a": "b"}},
            "label_selector: cannot be combined with use_tpu",
        ),
        ({"num_workers": 6, "topology": "4x4", "accelerator_type": "v4"}, "num_workers: 6 is no multiple of 4"),
        ({"num_workers": (2, 8), "topology": "4x4", "accelerator_type": "v4"}, "num_workers: 2 is no multiple of 4"),
        ({"num_workers": (4, 9), "topology": "4x4", "accelerator_type": "v4"}, "num_workers: 9 is no multiple of 4"),
        (
            {"num_workers": 1, "topology": "4x4", "accelerator_type": "v4", "resources_per_worker": {"TPU": 17}},
            "17 TPU are more than the 16 chips",
        ),
        ({"num_workers": 4, "topology": "wide", "accelerator_type": "v4"}, "topology: 'wide' is none"),
        ({"resources_per_worker": {"TPU": 0}}, "TPU is 0 while use_tpu is true"),
    ],
)
def test_what_cannot_be_had_is_refused_by_the_field(asked: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ScalingConfig(use_tpu=True, **asked)  # type: ignore[arg-type]  # by table
