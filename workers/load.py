"""Finding the training function an entry point names, in the rank and nowhere else."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final, cast

import msgspec

from runfold.workers.errors import LoadError
from runfold.workers.limits import FRAMEWORK_VERSION_MAX_BYTES

BLOB_PREFIX: Final = "blob:sha256:"
FRAMEWORKS: Final = (
    "jax",
    "lightgbm",
    "lightning",
    "numpy",
    "sklearn",
    "tensorflow",
    "torch",
    "torchft",
    "transformers",
    "xgboost",
)

TrainFunction = Callable[..., object]
_FILES: Final[dict[Path, tuple[bytes, ModuleType]]] = {}
"""What was imported from files in this process, with the digest of each."""


class Code(msgspec.Struct, frozen=True):
    """User code to be loaded: its entry point, and the bytes of one that is a blob."""

    entrypoint: str
    blob: bytes | None = None


class Entrypoint(msgspec.Struct, frozen=True):
    """A training function, whether it takes the configuration, and the digest of the file or blob it is from."""

    function: TrainFunction
    takes_config: bool
    digest: str | None


def load_entrypoint(text: str, working_dir: Path, blob: bytes | None = None) -> Entrypoint:
    """Return the function of `module:function`, `file.py:function` or `blob:sha256:…` (whose bytes are given).

    Raises `LoadError` when there is none, and whatever the user's module raises while it is imported.
    """
    return checked(text, *load_object(text, working_dir, blob))


def load_object(text: str, working_dir: Path, blob: bytes | None = None) -> tuple[object, str | None]:
    """Return what an entry point names, whatever it is, and the digest of the file or blob it is from."""
    if text.startswith(BLOB_PREFIX):
        return _load_blob(text, blob)
    source, _, name = text.rpartition(":")
    if not source or not name:
        raise LoadError(f"entry point {text!r} is neither module:function nor file.py:function")
    if source.endswith(".py"):
        module = _import_file(working_dir / source, text)
    else:
        module = _import_module(source, text, working_dir)
    return _attribute(module, name, text), _file_digest(module)


def load_callbacks(codes: Iterable[Code], working_dir: Path) -> list[object]:
    """Return the callback objects of these entry points: each names one, a class of one, or a list of them."""
    found: list[object] = []
    for code in codes:
        loaded, _ = load_object(code.entrypoint, working_dir, code.blob)
        several = cast("list[object]", loaded) if isinstance(loaded, list | tuple) else [loaded]
        found.extend(one() if isinstance(one, type) else one for one in several)
    return found


def _load_blob(text: str, blob: bytes | None) -> tuple[object, str]:
    if blob is None:
        raise LoadError(f"the pickled function {text} was not handed to this rank")
    digest = hashlib.sha256(blob).hexdigest()
    if digest != text.removeprefix(BLOB_PREFIX):
        raise LoadError(f"the pickled function has the digest {digest}, not the one of {text}: it is damaged")
    # Made by the user who submitted the job, and unpickled nowhere else.
    return pickle.loads(blob), f"sha256:{digest}"  # noqa: S301  # this is the process that runs the user's code


def _import_module(name: str, text: str, working_dir: Path) -> ModuleType:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not _is_within(error.name, name):
            raise
        found = None
    except ValueError:
        # A name that is imported but was never found by a finder: let the import decide.
        return importlib.import_module(name)
    if found is None:
        raise LoadError(f"entry point {text!r}: there is no module {name!r} (looked first in {working_dir})")
    return importlib.import_module(name)


def _is_within(found: str, wanted: str) -> bool:
    """Whether `found` is `wanted` or a package it is in: then it is missing itself, not something it imports."""
    return f"{wanted}.".startswith(f"{found}.")


def _import_file(path: Path, text: str) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise LoadError(f"entry point {text!r}: there is no file {path}")
    # A backend or a callback of the same file: one module, as if it had been imported.
    content = hashlib.sha256(path.read_bytes()).digest()
    if (known := _FILES.get(path)) is not None and known[0] == content:
        return known[1]
    # As for a script: what stands beside it can be imported.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"entry point {text!r}: {path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    # Known before it runs, as classes that it defines may be looked up while it does.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    _FILES[path] = content, module
    return module


def _module_name(path: Path) -> str:
    """Return the file's own name, by which its classes can be found again, unless another module bears it."""
    name = path.stem
    taken = name in sys.modules or name in sys.stdlib_module_names
    return name if name.isidentifier() and not taken else f"runfold_entry_{name}"


def _attribute(module: ModuleType, name: str, text: str) -> object:
    found: object = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            offered = ", ".join(sorted(n for n, v in vars(module).items() if inspect.isfunction(v))) or "none"
            raise LoadError(
                f"entry point {text!r}: {module.__name__} has no {name!r}; its functions: {offered}"
            ) from None
    return found


def _file_digest(module: ModuleType) -> str | None:
    if not module.__file__:
        return None
    try:
        return f"sha256:{hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()}"
    except OSError:
        return None


def checked(text: str, function: object, digest: str | None = None) -> Entrypoint:
    """Return an object as a training function; raise `LoadError` when it cannot be one. `text` names it."""
    if not callable(function):
        raise LoadError(f"entry point {text!r} is {type(function).__name__!r} and cannot be called")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise LoadError(f"entry point {text!r} is async; give a plain function that calls asyncio.run")
    if inspect.isgeneratorfunction(function):
        raise LoadError(f"entry point {text!r} is a generator: nothing would run when it is called")
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):
        # Some callables written in C do not tell.
        return Entrypoint(function, takes_config=False, digest=digest)
    return Entrypoint(function, takes_config=_takes_config(text, parameters), digest=digest)


def _takes_config(text: str, parameters: Mapping[str, inspect.Parameter]) -> bool:
    required = [
        p for p in parameters.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    named = ", ".join(p.name for p in required)
    if len(required) > 1:
        raise LoadError(f"entry point {text!r} needs {len(required)} arguments ({named}); it may need one")
    if required and required[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise LoadError(f"entry point {text!r} needs the keyword {named}; its argument is given by position")
    return bool(required)


def framework_versions() -> dict[str, str]:
    """Return Python's version and those of the frameworks that are imported; imports none."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in FRAMEWORKS:
        module = sys.modules.get(name)
        version = getattr(module, "__version__", None)
        if isinstance(version, str):
            versions[name] = version[:FRAMEWORK_VERSION_MAX_BYTES]
    return versions
