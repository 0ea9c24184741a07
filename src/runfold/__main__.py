"""`python -m runfold` and the console script: hand over to the command line."""

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from runfold.cli import main as cli_main
    except ModuleNotFoundError as error:
        if error.name != "runfold.cli":
            raise
        print("runfold: the command line is not part of this build", file=sys.stderr)
        return 2
    return cli_main() or 0


if __name__ == "__main__":
    sys.exit(main())
