"""Who may import whom, and what must stay unloaded until it is used."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

from support.sources import FOLDERS, ROOT, Source, imports, production

# What each folder may import of ours. `replay` may also read the pure files of controller.
ALLOWED = {
    "events": ("runfold.events",),
    "controller": ("runfold.events", "runfold.controller"),
    "workers": ("runfold.events", "runfold.workers"),
    "replay": ("runfold.events", "runfold.replay"),
}
HEAVY = ("ray", "pandas", "torch", "numpy", "sklearn", "pyarrow", "s3fs")
SUBPROCESS_TIMEOUT_S = 120
LINT_IMPORTS = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def pure_controller_modules() -> tuple[str, ...]:
    return tuple(
        source.module
        for source in production()
        if source.path.startswith("controller/") and source.is_pure and source.name != "__init__.py"
    )


def foreign_imports(source: Source) -> Iterator[str]:
    folder = PurePosixPath(source.path).parts[0]
    allowed = ALLOWED[folder] + (pure_controller_modules() if folder == "replay" else ())
    for line, name in imports(source):
        if within(name, ("runfold",)) and not within(name, allowed):
            yield f"{source.path}:{line}: {folder}/ may not import {name}"


def test_folders_import_only_what_the_design_allows() -> None:
    findings = [
        finding
        for source in production()
        if PurePosixPath(source.path).parts[0] in FOLDERS
        for finding in foreign_imports(source)
    ]
    assert not findings, "\n".join(findings)


def test_only_the_ray_pool_imports_ray() -> None:
    findings = [
        f"{source.path}:{line}: imports {name}"
        for source in production()
        if not source.matches("workers/pools/ray*.py", "workers/pools/ray/*.py")
        for line, name in imports(source)
        if within(name, ("ray",))
    ]
    assert not findings, "\n".join(findings)


def test_import_contracts_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LINT_IMPORTS, "--no-logo", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SUBPROCESS_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def loaded_after(code: str) -> set[str]:
    """The heavy libraries that a fresh interpreter holds after running this."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{code}\nimport sys\nprint('\\nheavy:', *(set({HEAVY!r}) & set(sys.modules)))",
        ],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=False,
        timeout=SUBPROCESS_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("heavy:")[2].split())


HELP = """
import sys
from runfold.__main__ import main
sys.argv = ["runfold", "--help"]
try:
    main()
except SystemExit as end:
    if end.code not in (0, None):
        raise
"""


def test_help_loads_no_heavy_library() -> None:
    assert loaded_after(HELP) == set()


def test_importing_the_package_loads_no_heavy_library() -> None:
    assert loaded_after("import runfold") == set()


def test_no_module_loads_a_heavy_library_at_import() -> None:
    modules = [
        source.module
        for source in production()
        if source.name != "__main__.py" and not source.matches("workers/pools/ray*.py", "workers/pools/ray/*.py")
    ]
    assert loaded_after(f"import importlib\nfor name in {modules!r}: importlib.import_module(name)") == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_known_by_its_full_name_only(folder: str) -> None:
    findings = [
        f"{source.path}:{line}: import runfold.{name} instead"
        for source in production()
        for line, name in imports(source)
        if within(name, (folder,))
    ]
    assert not findings, "\n".join(findings)


def test_ray_is_named_by_one_file_alone() -> None:
    """It is imported by its name as a text, so that it need not be installed: which the import contracts do not see."""
    naming = re.compile(r"""^\s*(import|from)\s+ray\b|_?import\w*\(\s*["']ray\b""", re.MULTILINE)
    found = {source.path for source in production() if naming.search(source.text)}
    assert found == {"workers/pools/ray/library.py"}
