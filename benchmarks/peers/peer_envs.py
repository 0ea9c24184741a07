"""An environment of its own for each peer, made when it is first needed and used again afterwards.

They stand in the user's cache directory, or under `--cache`: to be rid of them, remove it.
"""

import hashlib
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

import platformdirs

ROOT: Final = Path(__file__).resolve().parents[2]
INSTALL_TIMEOUT_S: Final = 1800
TORCH: Final = "torch==2.13.0"
RAY: Final = "2.60.0"
REQUIREMENTS: Final[dict[str, tuple[str, ...]]] = {
    "runfold": (TORCH, f"ray[default]=={RAY}", "-e", str(ROOT)),
    "ray": (TORCH, f"ray[train]=={RAY}", "psutil"),
    "torchrun": (TORCH, "psutil"),
}


def cache_dir() -> Path:
    """Where the environments stand unless said otherwise."""
    return platformdirs.user_cache_path("runfold") / "peers"


def environment(peer: str, cache: Path) -> Path:
    """Return the interpreter of a peer's environment; make it first if it is not there, or of other versions."""
    wanted = REQUIREMENTS[peer]
    digest = hashlib.sha256(" ".join((sys.version, *wanted)).encode()).hexdigest()
    folder = cache / peer
    python, stamp = folder / "bin" / "python", folder / "made-for"
    if stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"making the environment of {peer} in {folder}", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted], check=True, timeout=INSTALL_TIMEOUT_S, stdout=sys.stderr)
    stamp.write_text(digest)
    return python


def versions(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Return what is installed there."""
    code = "import sys, importlib.metadata as m; print(*(m.version(n) for n in sys.argv[1:]))"
    done = subprocess.run([str(python), "-c", code, *names], check=True, capture_output=True, text=True)
    return dict(zip(names, done.stdout.split(), strict=True))
