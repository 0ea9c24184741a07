"""A model that is prepared in a rank without a process group: what to choose is said."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runfold.workers import session
from runfold.workers.backends import torchlib
from runfold.workers.backends.torchuse import prepare_model


class Model:
    """One that can be put anywhere."""

    def to(self, device: object) -> Model:
        assert device == "cpu"
        return self


@pytest.fixture(autouse=True)
def _two_ranks_and_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def two() -> int:
        return 2

    def no() -> bool:
        return False

    def yes() -> bool:
        return True

    def current(_: str) -> object:
        return SimpleNamespace(context=SimpleNamespace(get_world_size=two))

    monkeypatch.setattr(session, "current", current)
    monkeypatch.setattr(torchlib, "torch", lambda: SimpleNamespace(cuda=SimpleNamespace(is_available=no)))
    monkeypatch.setattr(torchlib, "distributed", lambda: SimpleNamespace(is_available=yes, is_initialized=no))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_model_is_not_wrapped_without_a_group_and_the_backend_to_choose_is_named(strategy: str) -> None:
    with pytest.raises(RuntimeError, match=r"no process group.*TorchTrainer.*backend\.kind = 'torch'"):
        prepare_model(Model(), "cpu", strategy)


def test_a_model_that_is_trained_alone_needs_none() -> None:
    model = Model()
    assert prepare_model(model, "cpu", None) is model
