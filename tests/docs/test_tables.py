"""The generated pages are the code's; what they name exists."""

import importlib.util

import msgspec
import pytest

from runfold.cli import main
from runfold.events.config import FailureConfig
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


def test_the_readme_tells_errors_by_their_bare_names() -> None:
    assert "CollectivePeerError: all_gather" in (readme := (ROOT / "README.md").read_text(encoding="utf-8"))
    assert "runfold.workers.errors" not in readme


def test_every_setting_of_failures_is_in_a_document_for_users() -> None:
    pages = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("failures.md", "preemption.md"))
    unsaid = {name for name in FailureConfig.__struct_fields__ if f"{name}`" not in pages}
    assert unsaid == {"relax_collectives_on_preemption"}, "of no effect: the others are to be told of"
    for name in ("scaling.replica_group_size", "timeouts.coalesce_s` (5 s)"):
        assert name in pages
