"""One package, one copy of each file: the linked folders, and what a wheel and an sdist hold of them."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import runfold
from support.sources import FOLDERS, ROOT, production

BUILD_TIMEOUT_S = 300


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_link_is_relative_and_resolves(folder: str) -> None:
    link = ROOT / "src" / "runfold" / folder
    assert link.is_symlink(), f"{link} must be a link to ../../{folder}"
    assert link.readlink() == Path("../..") / folder
    assert link.resolve() == ROOT / folder
    assert (link / "__init__.py").is_file()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with an sdist, and the wheel made from it, built from a copy: the tree stays clean."""
    base = tmp_path_factory.mktemp("build")
    copy = base / "tree"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "build", "dist")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignore)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(base / "dist"), str(copy)],
        cwd=base,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return base / "dist"


def installed_as(path: str) -> str:
    """Where a file of the repository stands once installed."""
    return path.removeprefix("src/") if path.startswith("src/") else f"runfold/{path}"


def expected() -> set[str]:
    """Every Python file that must be installed."""
    return {installed_as(source.path) for source in production()}


def test_the_wheel_holds_every_module_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    code = {name for name in names if name.endswith(".py")}
    assert code == expected()
    assert "runfold/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"runfold", wheel.name.split("-py3")[0] + ".dist-info"}


def test_the_sdist_holds_every_module(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/src/")[2] for name in archive.getnames()}
    assert expected() <= names


def test_the_installed_version_is_the_packages() -> None:
    from importlib.metadata import version

    assert version("runfold") == runfold.__version__


def test_public_names_are_complete() -> None:
    """`__all__` names exactly what the package offers; ruff keeps it sorted."""
    missing = [name for name in runfold.__all__ if not hasattr(runfold, name)]
    assert not missing, f"named in __all__, but not there: {missing}"
    offered = {
        name
        for name, value in vars(runfold).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("runfold")
    }
    unlisted = sorted(offered - set(runfold.__all__))
    assert not unlisted, f"public, but not in __all__: {unlisted}"
