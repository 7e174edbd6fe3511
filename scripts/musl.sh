#!/bin/sh
# Makes an Erlang for musl, the C library of Alpine's images, in _build/musl. `scripts/check.sh musl` tests on it.
#
#   bin/    musl-cc, musl-c++, musl-ar, musl-ranlib: zig, from PyPI, with its libc++
#   root/   an Erlang root: the emulator is built from the source of the installed Debian package, the rest are links to
#           that Erlang, whose .beam files run on any emulator of its version
#
# OpenSSL is not built: in the place of crypto is a stand-in with as much of it as weir uses. This takes 7 minutes on a busy
# machine of two cores. Nothing is done when all is there.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"

zig_version=0.17.1
musl=$root/_build/musl
host=$(uname -m)-linux-musl
machine_root=/usr/lib/erlang

download_compiler() {
  rm -rf "$musl/zig" "$musl/bin" "$musl/cache"
  mkdir -p "$musl/zig" "$musl/bin"
  cd "$musl/zig"
  python3 -m pip download --no-deps --only-binary :all: "ziglang==$zig_version"
  python3 -m zipfile -e ziglang-*.whl .
  rm ziglang-*.whl
  chmod +x ziglang/zig
  for language in cc c++; do
    # zig refuses --exclude-libs, and links statically for musl unless told otherwise.
    cat >"$musl/bin/musl-$language" <<END
#!/bin/sh
for word; do
  shift
  case \$word in -Wl,--exclude-libs,*) ;; *) set -- "\$@" "\$word" ;; esac
done
ZIG_GLOBAL_CACHE_DIR=$musl/cache ZIG_LOCAL_CACHE_DIR=$musl/cache
export ZIG_GLOBAL_CACHE_DIR ZIG_LOCAL_CACHE_DIR
exec $musl/zig/ziglang/zig $language -target $host -dynamic "\$@"
END
  done
  for tool in ar ranlib; do
    printf '#!/bin/sh\nexec %s/zig/ziglang/zig %s "$@"\n' "$musl" "$tool" >"$musl/bin/musl-$tool"
  done
  chmod +x "$musl"/bin/*
  "$musl/zig/ziglang/zig" version
}

# Lists of source packages of this machine's archives, beside apt's own, which stay as they are.
own_apt() {
  apt-get -o Dir::Etc::sourcelist="$musl/apt/sources.list" -o Dir::Etc::sourceparts=- \
    -o Dir::State::lists="$musl/apt/lists" -o Dir::Cache="$musl/apt/cache" "$@"
}

download_source() {
  rm -rf "$musl/apt" "$musl/otp"
  mkdir -p "$musl/apt/lists/partial" "$musl/apt/cache/archives/partial" "$musl/otp"
  apt-get indextargets --format 'deb-src $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
    sort -u >"$musl/apt/sources.list"
  own_apt update
  cd "$musl/apt"
  own_apt source --download-only "erlang=$package_version"
  tar -xf erlang_*.orig.tar.* -C "$musl/otp" --strip-components=1
  rm -rf "$musl/apt"
}

build_emulator() {
  cd "$musl/otp"
  ERL_TOP=$musl/otp
  CC=$musl/bin/musl-cc CXX=$musl/bin/musl-c++ LD=$musl/bin/musl-cc AR=$musl/bin/musl-ar RANLIB=$musl/bin/musl-ranlib
  CFLAGS="-O2 -fno-sanitize=all" CXXFLAGS="-O2 -fno-sanitize=all"
  # Dependencies matter only to those who edit this source.
  ERTS_SKIP_DEPEND=true
  export ERL_TOP CC CXX LD AR RANLIB CFLAGS CXXFLAGS ERTS_SKIP_DEPEND
  ./configure --host="$host" --build="$(uname -m)-linux-gnu" erl_xcomp_sysroot=/nonexistent --enable-jit \
    --without-termcap --without-wx --without-javac --without-odbc --without-ssl
  target=$(basename "$(echo erts/emulator/*-linux-musl)")
  # Without a precompiled header: zig doesn't make them.
  make -C erts/emulator opt FLAVOR=jit TARGET="$target" ASMJIT_PCH_OBJ=
  make -C erts/etc/common -f "$target/Makefile" TYPE=opt TARGET="$target" "$ERL_TOP/bin/$target/erlexec" \
    "$ERL_TOP/bin/$target/inet_gethost"
}

stand_in_for_crypto() {
  cat >crypto.erl <<'END'
%% As much as weir uses, and not secret: for tests on an emulator without OpenSSL.
-module(crypto).
-export([strong_rand_bytes/1, mac/4]).

strong_rand_bytes(N) ->
    rand:bytes(N).

mac(hmac, sha256, Key, Data) ->
    <<(erlang:md5([Key, 0, Data]))/binary, (erlang:md5([Key, 1, Data]))/binary>>.
END
  erlc crypto.erl
  echo '{application, crypto, [{vsn, "0"}, {modules, [crypto]}, {registered, []}, {applications, [kernel, stdlib]}]}.' \
    >crypto.app
}

make_root() {
  erts=$(basename "$(echo "$machine_root"/erts-*)")
  bin=$musl/root/$erts/bin
  rm -rf "$musl/root"
  mkdir -p "$bin" "$musl/root/bin" "$musl/root/lib/crypto-0/ebin"
  for program in beam.smp erl_child_setup erlexec inet_gethost; do
    cp "$(echo "$musl"/otp/bin/*-linux-musl)/$program" "$bin/"
  done
  ln -s "$machine_root/$erts/bin/epmd" "$bin/"
  ln -s "$machine_root/releases" "$musl/root/"
  ln -s "$machine_root"/bin/*.boot "$musl/root/bin/"
  for app in "$machine_root"/lib/*; do
    case $app in */crypto-*) ;; *) ln -s "$app" "$musl/root/lib/" ;; esac
  done
  cd "$musl/root/lib/crypto-0/ebin"
  stand_in_for_crypto
  cat >"$musl/root/bin/erl" <<END
#!/bin/sh
ROOTDIR=$musl/root BINDIR=$bin EMU=beam PROGNAME=erl
export ROOTDIR BINDIR EMU PROGNAME
exec "\$BINDIR/erlexec" "\$@"
END
  chmod +x "$musl/root/bin/erl"
  "$musl/root/bin/erl" -noshell -eval '
    Built = erlang:system_info(system_architecture),
    io:format("~s ~s, ~s~n", [Built, erlang:system_info(version), erlang:system_info(emu_flavor)]),
    halt(case string:find(Built, "musl") of nomatch -> 1; _ -> 0 end).'
}

package_version=$(dpkg-query -W -f '${source:Version}' erlang-base 2>/dev/null) ||
  fail "Erlang for musl is built from the source of Debian's erlang-base, which is not installed"
made="zig $zig_version, erlang $package_version, in $musl"
[ "$(cat "$musl/made" 2>/dev/null)" != "$made" ] || exit 0
rm -f "$musl/made"
step "fetching a compiler for musl" download_compiler
step "fetching the source of Erlang" download_source
step "building an emulator for musl" build_emulator
step "making an Erlang root of it" make_root
rm -rf "$musl/otp"
echo "$made" >"$musl/made"
