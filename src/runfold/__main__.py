"""`python -m runfold` and the console script: hand over to the command line."""

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    from runfold.cli import main as cli_main

    return cli_main()


if __name__ == "__main__":
    sys.exit(main())
