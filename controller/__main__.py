"""`python -m runfold.controller --data DIR`: the controller process that `up` starts."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from runfold.controller.config import read_config
from runfold.controller.main import serve
from runfold.controller.safe import shown_error
from runfold.controller.seat import NoSeat
from runfold.events.nats.errors import BrokerUnreachable

EXIT_ERROR = 1
EXIT_UNREACHABLE = 5


def main() -> int:
    """Serve until told to stop; a line `ready` on standard output says that jobs are taken."""
    parser = argparse.ArgumentParser(prog="python -m runfold.controller", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the data directory (connection.json, seats)")
    parser.add_argument("--url", help="the broker, instead of the one that connection.json names")
    parser.add_argument("--host", help="first part of the controller's id, instead of the machine's name")
    given = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = read_config(given.data, url=given.url, host=given.host)
        asyncio.run(serve(config, ready=lambda: print("ready", flush=True)))
    except BrokerUnreachable as error:
        print(f"runfold controller: {error}", file=sys.stderr)
        return EXIT_UNREACHABLE
    except NoSeat as error:
        print(f"runfold controller: {error}", file=sys.stderr)
        return EXIT_ERROR
    except Exception as error:
        print(f"runfold controller: {shown_error(error)}", file=sys.stderr)
        return EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
