#!/bin/bash
# Runs all tests, and ends with one line that sums them: "N passed, N failed".
#
# A test counts as failed when it is skipped, and a suite that ends without its summary (a crash, no tests) is one failure: no
# way to lose tests leads to a green end. Exit status 0 only when something ran and nothing failed.
#
# Environment: SUITES="weir_api_SUITE ..." runs only these of Common Test and no C++;  WEIR_CASES  property cases
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
use_prepared
cd "$root" || exit 1
mkdir -p "$logs"

passed=0
failed=0
count() {
  passed=$((passed + $1))
  failed=$((failed + $2))
}

# first_number TEXT PATTERN: the number in the last match of the pattern, or 0.
first_number() {
  local found
  found=$(printf '%s\n' "$1" | grep -oE "$2" | tail -n 1 | grep -oE '[0-9]+' | head -n 1)
  echo "${found:-0}"
}

# Catch2 2 and 3: "All tests passed (7 assertions in 3 test cases)", or "test cases: 3 | 2 passed | 1 failed".
count_catch2() {
  local status=$1 summary
  summary=$(grep -aE '^(All tests passed|test cases: )' "$2" | tail -n 1)
  case $summary in
    All*) count "$(first_number "$summary" 'in [0-9]+ test case')" 0 ;;
    test*)
      local bad
      bad=$(($(first_number "$summary" '[0-9]+ failed') + $(first_number "$summary" '[0-9]+ skipped')))
      count "$(first_number "$summary" '[0-9]+ passed')" "$((bad > 0 ? bad : 1))"
      ;;
    *) count 0 1 ;;
  esac
  [ "$status" = 0 ] || [ "$failed" -gt 0 ] || count 0 1
}

# rebar3: "All 3 tests passed.", or "Failed 1 tests. Skipped 2 (1, 1) tests. Passed 3 tests."
count_ct() {
  local status=$1 summary bad
  summary=$(sed 's/\x1b\[[0-9;]*m//g' "$2" | grep -aE '(All [0-9]+ tests passed|(Failed|Skipped|Passed) [0-9]+)' | tail -n 1)
  bad=$(($(first_number "$summary" 'Failed [0-9]+') + $(first_number "$summary" 'Skipped [0-9]+')))
  case $summary in
    *All*) count "$(first_number "$summary" 'All [0-9]+')" 0 ;;
    *Passed* | *Failed* | *Skipped*) count "$(first_number "$summary" 'Passed [0-9]+')" "$bad" ;;
    *) count 0 1 ;;
  esac
  [ "$status" = 0 ] || [ "$bad" -gt 0 ] || [ -z "$summary" ] || count 0 1
}

build_cpp() {
  configure_in _build/cpp -DWEIR_NIF=OFF -DWEIR_TESTS=ON &&
    cmake --build _build/cpp --parallel "${WEIR_JOBS:-$(nproc)}" --target weir_test
}

if [ -z "${SUITES:-}" ]; then
  # (In a subshell: a failed step exits.)
  if (step "building the C++ tests" build_cpp); then
    say "running the C++ tests (Catch2)"
    _build/cpp/weir_test 2>&1 | tee "$logs/catch2.txt"
    count_catch2 "${PIPESTATUS[0]}" "$logs/catch2.txt"
  else
    count 0 1
  fi
fi

say "running the Erlang tests (Common Test)"
suites=$(echo "${SUITES:-}" | tr ' ' ',')
rebar3 ct --readable=compact ${suites:+--suite="$suites"} 2>&1 </dev/null | tee "$logs/ct.txt"
count_ct "${PIPESTATUS[0]}" "$logs/ct.txt"

# What failed, once more: above it stands among all that ran.
failures() {
  sed 's/\x1b\[[0-9;]*m//g' "$logs/catch2.txt" "$logs/ct.txt" 2>/dev/null |
    grep -aE -A 6 '(^%%% [^ ]+ ==> .*(FAILED|SKIPPED)$|: FAILED:)' | cut -c 1-300 | head -n 100
}
if [ "$failed" -gt 0 ]; then
  say "what failed"
  failures
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
