#!/bin/bash
# Breaks weir on purpose, one small fault at a time, in a copy of this source, and looks whether its tests notice.
#
#   scripts/mutants.sh                all mutants of test/mutants/*.txt (what these files say is in test/mutants/README.md)
#   scripts/mutants.sh ID...          these; also those that are listed as equivalent
#   scripts/mutants.sh -k PATTERN     those whose id or file has a match of this regular expression
#   scripts/mutants.sh -a ...         C++ mutants are shown to all Catch2 tests, not only to those that are named
#   scripts/mutants.sh -l ...         list them, and look whether they still fit the source; run nothing
#
# All of them take 15 to 25 minutes on two cores: the first builds some 3, a mutant of C++ 2 seconds, one of Erlang 3 to 45, as some
# of its tests fail only when what they wait for doesn't come.
#
# Exit status 0: each was killed, or is listed as equivalent with a reason. A mutant that doesn't fit the source any more, or
# doesn't compile, is an error. The copy and its build are kept in _build/mutants; logs are in _build/mutants/logs.
#
# Environment: WEIR_JOBS  parallel compilers (one a core)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
use_prepared
cd "$root"
mkdir -p _build/mutants
if command -v flock >/dev/null; then
  exec 9>_build/mutants/lock
  flock -n 9 || fail "another run of scripts/mutants.sh is under way in this checkout"
fi
# (Closed for those it starts: one that outlives it must not keep the lock.)
WEIR_JOBS=${WEIR_JOBS:-$(nproc)} escript scripts/mutants.escript "$@" 9>&-
