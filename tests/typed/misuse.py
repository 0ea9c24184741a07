"""What a type checker must refuse: each line is an error for mypy, and an unused exemption if it were none."""

import runfold


def wrong() -> None:
    """Every call here is a mistake; nothing runs them."""
    runfold.report("loss")  # type: ignore[arg-type]  # metrics are a mapping
    runfold.report()  # type: ignore[call-arg]  # metrics are required
    runfold.report({}, checkpoint="path")  # type: ignore[arg-type]  # a path is no Checkpoint
    runfold.barrier(timeout="1")  # type: ignore[call-arg]  # limits carry their unit: timeout_s
    runfold.Trainer(42)  # type: ignore[arg-type]  # neither a function nor a reference
    runfold.ScalingConfig(workers=2)  # type: ignore[call-arg]  # there is no such field
    runfold.RunConfig(name=1)  # type: ignore[arg-type]  # a name is a text
    runfold.FailureConfig().max_failures = 1  # type: ignore[misc]  # settings are frozen
