#!/bin/sh
# Makes all runs, figures and tables of doc/lab.md, which it writes: some minutes the first time.
#
#   bench/lab/run.sh
#
# Wants bin/weir-lab built and a Python 3 with matplotlib (scripts/bootstrap.sh lab); runs.py says what the environment can set.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/scripts/lib.sh"
cd "$root"

# A python3 that comes first in the path need not be the system's, which has the packages.
for python in python3 /usr/bin/python3; do
  ! "$python" -c 'import matplotlib' 2>/dev/null || break
done
say "runs, figures and the page of the lab"
PYTHONDONTWRITEBYTECODE=1 exec "$python" bench/lab/page.py
