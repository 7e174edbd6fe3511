#!/bin/sh
# Builds the OTP release with the shared libraries that it needs.
#
#   scripts/release.sh          _build/server/rel/weir, ready to run
#   scripts/release.sh tar      + _build/server/rel/weir-VERSION.tar.gz; its path is the last line of the output
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
use_prepared
cd "$root"

rel=_build/server/rel/weir
# Assembled anew each time: a dependency that is gone must not linger in it.
rm -rf "$rel"
step "building the release" rebar3 as server release
step "adding the shared libraries" sh scripts/bundle_libs.sh "$rel"

if [ "${1:-}" = tar ]; then
  tarball=_build/server/rel/weir-$(cat VERSION).tar.gz
  step "packing $tarball" tar -C _build/server/rel --owner=0 --group=0 -czf "$tarball" weir
  echo "$root/$tarball"
fi
