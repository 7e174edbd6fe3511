#!/bin/sh
# Makes all runs, figures and tables of a page, which it writes.
#
#   bench/lab/run.sh             doc/lab.md, simulated: some minutes the first time
#   bench/lab/run.sh real        doc/lab-real.md, real nodes beside simulated ones: some 20 minutes
#   bench/lab/run.sh cluster     doc/benchmarks-cluster.md, real nodes: some 40 minutes. Let nothing else run on the machine
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
export PYTHONDONTWRITEBYTECODE=1
case ${1:-} in
  '') say "runs, figures and the page of the lab" && exec "$python" bench/lab/page.py ;;
  real) say "real nodes against the lab" && exec "$python" bench/lab/real.py lab ;;
  cluster) say "the benchmark of the cluster" && exec "$python" bench/lab/real.py cluster ;;
  *) fail "no such page: $1 (real, cluster)" ;;
esac
