#!/bin/sh
# Builds bin/weir-lab with CMake, or finds within a second that nothing changed; and what weir's real nodes need beside weir,
# where there is Erlang.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
cd "$root"

build() {
  # Two builds at once (a shell and a test) would tread on each other's objects.
  mkdir -p _build/lab
  if command -v flock >/dev/null; then
    exec 9>_build/lab/lock
    flock 9
  fi
  configure_in _build/lab -DWEIR_NIF=OFF -DWEIR_LAB=ON &&
    cmake --build _build/lab --parallel "${WEIR_JOBS:-$(nproc)}" --target weir-lab || return 1
  if command -v erlc >/dev/null; then
    mkdir -p _build/lab/ebin
    erlc -Werror -o _build/lab/ebin bench/lab/weir_lab_node.erl bench/lab/weir_lab_epmd.erl
  fi
}

step "building bin/weir-lab" build
