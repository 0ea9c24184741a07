"""What loading will import, told from source; and what no fork survives, told from what a process has open."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from runfold.events.config import BackendConfig
from runfold.pickling import pickle_function
from runfold.workers import foresee
from runfold.workers.fitness import device_in
from runfold.workers.foresee import foreseen, imports_of
from runfold.workers.imports import is_users, newly_installed
from runfold.workers.link import Start

if TYPE_CHECKING:
    from pathlib import Path


def start(folder: Path, entrypoint: str, **changes: object) -> Start:
    given: dict[str, object] = {"rank": 0, "world_size": 1, "local_rank": 0, "local_world_size": 1, "node_rank": 0}
    fields = {**given, "run": "r", "name": "", "attempt": 1, "life": 1, "working_dir": str(folder), **changes}
    return Start(entrypoint=entrypoint, **fields)  # type: ignore[arg-type]  # a table's fields


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import a\nimport b.c as d, e", ["a", "b.c", "e"]),
        ("from a.b import c, d\nfrom x import *", ["a.b", "a.b.c", "a.b.d", "x"]),
        ("from . import near\nfrom .near import x", []),
        ("try:\n  import a\nexcept ImportError:\n  import b\nif True:\n  import c", ["a", "b", "c"]),
        ("class C:\n  import a\n  def f(self):\n    import never", ["a"]),
        ("def f():\n  import never\nlambda: 1\nasync def g():\n  import never", []),
        ("this is no python", []),
        ("import a\0", []),
        ("(" * 5000, []),
    ],
)
def test_a_source_tells_what_it_imports(source: str, names: list[str]) -> None:
    assert list(imports_of(source.encode())) == names


@pytest.fixture
def everything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_package(name: str) -> bool:
        return name.partition(".")[0] not in sys.stdlib_module_names

    monkeypatch.setattr(foresee, "_is_package", is_package)


@pytest.mark.usefixtures("everything_is_installed")
def test_what_the_users_own_modules_import_is_followed(tmp_path: Path) -> None:
    (tmp_path / "src" / "pack").mkdir(parents=True)
    (tmp_path / "src" / "job.py").write_text("import json\nimport helper\nfrom pack import inner\nimport libone\n")
    (tmp_path / "helper.py").write_text("import libtwo\nimport job\n")
    (tmp_path / "src" / "pack" / "__init__.py").write_text("import libthree.deep")
    (tmp_path / "src" / "pack" / "inner.py").write_text("from libfour import thing")
    found = foreseen(start(tmp_path, "src/job.py:train"))
    assert set(found) == {"libone", "libtwo", "libthree.deep", "libfour", "libfour.thing"}
    found = foreseen(start(tmp_path / "src", "pack.inner:train"))
    assert set(found) == {"libthree.deep", "libfour", "libfour.thing"}
    assert foreseen(start(tmp_path, "libfive.sub:train")) == ["libfive.sub"]


@pytest.mark.usefixtures("everything_is_installed")
def test_a_pickle_tells_the_modules_that_it_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def train() -> object:
        return np.zeros(1)

    # As in a script: its functions are pickled by their value.
    train.__module__ = "__main__"
    blob = pickle_function(train)
    monkeypatch.delitem(sys.modules, "numpy")
    assert "numpy" in foreseen(start(tmp_path, "blob:sha256:00", blob=blob))
    assert foreseen(start(tmp_path, "blob:sha256:00", blob=b"no pickle")) == []


@pytest.mark.usefixtures("everything_is_installed")
def test_a_backend_imports_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def train(): pass")
    found = foreseen(start(tmp_path, "job.py:train", backend=BackendConfig(kind="torch")))
    assert found == (["torch", "torch.distributed"] if "torch" not in sys.modules else [])


def test_what_is_missing_is_nothing_to_foresee(tmp_path: Path) -> None:
    assert foreseen(start(tmp_path, "none.py:train")) == []
    assert foreseen(start(tmp_path, "nosuch.module:train")) == []


@pytest.mark.parametrize("source", ["a" * 300, f"{'a' * 300}.py", "a\0b.py", "/", "..a", "a/b"])
def test_a_name_that_no_file_can_have_is_nothing_to_foresee(tmp_path: Path, source: str) -> None:
    assert foreseen(start(tmp_path, f"{source}:train")) == []


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/dev/nvidiactl", "/dev/nvidiactl"),
        ("/dev/nvidia-uvm", "/dev/nvidia-uvm"),
        ("dev/nvidia0", "/dev/nvidia0"),
        ("/dev/kfd", "/dev/kfd"),
        ("/dev/accel0", "/dev/accel0"),
        ("/dev/null", None),
        ("/srv/dev/nvidia", None),
        ("socket:[1]", None),
        ("", None),
    ],
)
def test_an_open_device_tells_that_an_accelerator_is_in_use(path: str, found: str | None) -> None:
    assert device_in([path]) == found


def test_installed_modules_are_told_from_the_users_own() -> None:
    own = sys.modules[__name__]
    assert is_users(__name__, own)
    assert not is_users("numpy", np)
    assert not is_users("sys", sys)
    installed = newly_installed(())
    assert {"numpy", "sys", "json", "runfold.workers.foresee"} <= set(installed)
    assert __name__ not in installed
