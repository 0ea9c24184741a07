"""Which pool is meant where none is named."""

from __future__ import annotations

import pytest

from runfold.capacities import chosen
from runfold.errors import NoAnswerError, UsageError


@pytest.mark.parametrize(
    ("pools", "expected"), [(["local"], "local"), (["ray"], "ray"), (["ray", "local", "other"], "local")]
)
def test_the_pool_that_is_there_is_meant(pools: list[str], expected: str) -> None:
    assert chosen(pools) == expected


def test_where_there_is_none_or_one_of_several_it_must_be_said_which() -> None:
    with pytest.raises(NoAnswerError, match="no supervisor was heard"):
        chosen([])
    with pytest.raises(UsageError, match="--pool: say which: gpus, ray"):
        chosen(["ray", "gpus"])
