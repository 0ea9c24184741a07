"""A run that `gc` gave back is read from its archive by every command, while the service is up."""

from __future__ import annotations

from typing import Final

from support.commands import Commands

TRAINING: Final = """
import runfold


def steps(config):
    for index in range(3):
        runfold.report({"index": index})
    return "done"
"""
ASKED: Final = (
    ("replay", "RUN"),
    ("replay", "RUN", "--at", "2"),
    ("replay", "RUN", "--follow"),
    ("watch", "RUN"),
    ("get", "RUN"),
    ("logs", "RUN"),
    ("goodput", "RUN"),
    ("export", "RUN"),
    ("verify", "RUN"),
    ("diff", "RUN", "1", "2"),
    ("whatif", "RUN", "--set", "failure.max_failures=3"),
    ("audit", "RUN"),
    ("audit", "--all"),
)


def test_a_run_that_was_given_back_is_read_from_its_archive(runfold: Commands) -> None:
    runfold.write("jobs.py", TRAINING)
    with runfold.service("--slots", "2"):
        run = runfold.ok("run", "jobs.py:steps", "--name", "early", "-o", "json").document["run"]
        assert isinstance(run, str)
        runfold.ok("archive", run, str(runfold.folder / "beside"))
        before = runfold.ok("replay", run).out
        runfold.until_archived(run)
        given = runfold.ok("gc", "--older-than", "0s")
        assert f"{run}: " in given.out, given.err
        assert runfold.ok("replay", run).out == before
        for words in ASKED:
            done = runfold(*(run if word == "RUN" else word for word in words))
            assert done.code == 0, f"{words}: {done.out}\n{done.err}"
        runfold.ok("archive", run, str(runfold.folder / "again"))
        (listed,) = [line for line in runfold.ok("ls").out.splitlines() if line.startswith(run)]
        assert "finished" in listed
        assert "archive" in listed
        assert "none quarantined" in runfold("doctor").out
        again = runfold("resume", run)
        assert again.code == 0, again.err
        assert f"continues {run}" in again.err
        refused = runfold("abort", run)
        assert "Traceback" not in refused.err
        elsewhere = runfold("replay", run, "--server", runfold_url(runfold))
        assert elsewhere.code == 0, "its archive is in this data directory"


def runfold_url(runfold: Commands) -> str:
    """The address of the service, as another machine would name it."""
    from runfold.locate import answering

    address = answering(runfold.data)
    assert address is not None
    return address.url
