#!/bin/sh
# Start a run from the shell: a job is one JSON message on one subject.
# Needs `runfold` on the path, a service (`runfold up`), RUNFOLD_DATA naming its data directory, and this repository as the
# working directory; the second half also the nats program.
set -eu

# With runfold's own command: the id of the run is all it prints on standard output.
run=$(runfold submit examples/digits.py:train --workers 2 --set failure.max_failures=1)
runfold watch "$run"

# With the nats program alone. The acknowledgement is the receipt; without an id the run is called job-<sequence>.
if command -v nats >/dev/null; then
  url=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["url"])' "${RUNFOLD_DATA:?}/connection.json")
  nats --server "$url" request runfold.jobs.submit "{
    \"entrypoint\": \"examples/digits.py:train\",
    \"working_dir\": \"$PWD\",
    \"scaling\": {\"num_workers\": 2}
  }"
fi
