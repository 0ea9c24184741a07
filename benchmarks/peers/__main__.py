"""`python benchmarks/peers`: see `peer_table`."""

import sys

from peer_table import main

if __name__ == "__main__":
    sys.exit(main())
