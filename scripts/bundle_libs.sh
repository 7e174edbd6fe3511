#!/bin/sh
# Copies the shared libraries that a release links, except the C library itself, into its syslib folder, so that it runs on a
# machine that has none of them.
#
#   scripts/bundle_libs.sh FOLDER_OF_THE_RELEASE
#
# The C library and its loader stay out: they must match the kernel and each other. The release therefore needs a glibc at
# least as new as the one of the machine that built it.
set -eu
rel=${1:?usage: bundle_libs.sh FOLDER_OF_THE_RELEASE}
[ -d "$rel/lib" ] || { echo "$rel is no release" >&2; exit 1; }
mkdir -p "$rel/syslib/copyright"

# Executables and shared objects of the release. What is not ELF makes ldd say so, and is skipped.
find "$rel"/erts-*/bin "$rel"/lib/*/priv -type f \( -perm -u+x -o -name '*.so' \) -exec ldd {} + 2>/dev/null |
  awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
  while read -r name path; do
    case $name in
      libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libutil.so.* | libnsl.so.*) ;;
      *)
        cp -L "$path" "$rel/syslib/$name"
        # Their licences travel with them.
        package=$({ dpkg-query -S "$path" || dpkg-query -S "$(readlink -f "$path")"; } 2>/dev/null |
          head -n 1 | cut -d: -f1) || package=
        [ ! -e "/usr/share/doc/$package/copyright" ] || cp -L "/usr/share/doc/$package/copyright" "$rel/syslib/copyright/$package"
        ;;
    esac
  done
