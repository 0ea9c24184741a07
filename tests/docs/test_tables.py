"""The generated pages are the code's; what they name exists."""

import importlib.util

import msgspec
import pytest

from runfold.cli import main
from runfold.events.job import Job
from runfold.peer import INSTEAD
from support.sources import ROOT

PAGES = ("docs/failures.md", "docs/environment.md", "docs/audit.md", "docs/goodput.md", "README.md")


def written(name: str) -> str:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    return str(tables.PAGES[ROOT / name]())


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == written(name), "run: python docs/tables.py"


def test_the_replay_of_the_readme_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["replay", "tests/golden/golden-digits-retry.jsonl"]) == 0
    assert f"golden-digits-retry.jsonl\n\n{capsys.readouterr().out}```" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("variable", INSTEAD)
def test_what_is_named_instead_is_a_field_of_the_job(variable: str) -> None:
    instead = INSTEAD[variable]
    if instead.startswith("nothing: "):
        return
    whole = msgspec.to_builtins(Job(entrypoint="module:function"))
    for part in instead.partition(",")[0].split("."):
        assert isinstance(whole, dict)
        if whole == {}:  # a table of the user's own names, as `env`
            return
        assert part in whole, f"{variable}: there is no field {instead}"
        whole = whole[part]
