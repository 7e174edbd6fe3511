#!/bin/sh
# Installs what is missing, or says what to install.
#
#   scripts/bootstrap.sh run        what building and running needs
#   scripts/bootstrap.sh test       + the tests
#   scripts/bootstrap.sh check      + formatters, analysers, fuzzers
#   scripts/bootstrap.sh long       + an aarch64 compiler and emulator, and an Erlang for musl (scripts/musl.sh)
#   scripts/bootstrap.sh bench      + what the benchmarks compare with
#   scripts/bootstrap.sh lab        what the lab and its figures need
#
# As root on Debian or Ubuntu packages are installed with apt-get; elsewhere the list is printed. Nothing is done when all is
# there. cowboy, prometheus and eetcd, which Debian does not package, are taken out of its rabbitmq-server package (unpacked under
# _build/debian, not installed); without Debian's Erlang they are left to rebar3, which fetches them from hex.pm.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"

target=${1:-run}

# Each line: what must be there, the Debian package that brings it.
#   cmd:NAME   a command              app:NAME   an Erlang application
#   erl_nif.h  the header             lib:NAME   a C++ header or library
#   hex:NAME   an Erlang application that is on hex.pm too           inc:NAME  the headers of one
#   py:NAME    a Python package
needs() {
  cat <<'END'
cmd:cmake cmake
cmd:make make
cmd:g++ g++
cmd:erl erlang-base
erl_nif.h erlang-dev
app:crypto erlang-crypto
app:ssl erlang-ssl
app:inets erlang-inets
app:parsetools erlang-parsetools
app:runtime_tools erlang-runtime-tools
app:syntax_tools erlang-syntax-tools
app:xmerl erlang-xmerl
app:tools erlang-tools
app:mnesia erlang-mnesia
hex:jiffy erlang-jiffy
cmd:rebar3 rebar3
lib:fmt libfmt-dev
lib:cli11 libcli11-dev
lib:nlohmann nlohmann-json3-dev
END
  case $target in run | lab) ;; *) cat <<'END' ;;
app:common_test erlang-common-test
app:eunit erlang-eunit
app:os_mon erlang-os-mon
hex:proper erlang-proper
inc:proper erlang-proper-dev
lib:catch2 catch2
cmd:mix elixir
cmd:dnsmasq dnsmasq-base
cmd:etcd etcd-server
cmd:faketime faketime
cmd:openssl openssl
END
  esac
  case $target in check | long) cat <<'END' ;;
app:dialyzer erlang-dialyzer
cmd:clang++ clang
cmd:clang-format clang-format
cmd:clang-tidy clang-tidy
lib:fuzzer libclang-rt-dev
END
  esac
  case $target in long) cat <<'END' ;;
cmd:aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
cmd:qemu-aarch64 qemu-user
lib:musl musl
cmd:pip3 python3-pip
cmd:xz xz-utils
END
  esac
  case $target in bench) cat <<'END' ;;
cmd:wrk wrk
END
  esac
  case $target in lab) cat <<'END' ;;
py:matplotlib python3-matplotlib
END
  esac
}

# One start of the VM answers for all applications: prints "ROOT app app ...".
erlang_facts() {
  command -v erl >/dev/null || return 0
  erl -noshell -eval '
    Known = [A || A <- string:lexemes(os:getenv("WEIR_APPS"), " "), code:lib_dir(list_to_atom(A)) =/= {error, bad_name}],
    io:put_chars(lists:join(" ", [code:root_dir() | Known])), halt().' 2>/dev/null || :
}

has_word() {
  case " $2 " in *" $1 "*) return 0 ;; esac
  return 1
}

has_lib() {
  case $1 in
    catch2) ls /usr/include/catch2/catch.hpp /usr/include/catch2/catch_all.hpp /usr/local/include/catch2/*.hpp ;;
    fmt) ls /usr/include/fmt/core.h /usr/local/include/fmt/core.h ;;
    cli11) ls /usr/include/CLI/CLI.hpp /usr/local/include/CLI/CLI.hpp ;;
    nlohmann) ls /usr/include/nlohmann/json.hpp /usr/local/include/nlohmann/json.hpp ;;
    musl) ls /lib/ld-musl-*.so.1 ;;
    fuzzer) ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a /usr/lib/clang/*/lib/*/libclang_rt.fuzzer*.a ;;
  esac 2>/dev/null | grep -q .
}

# Prints the packages that are missing, one a line.
missing() {
  WEIR_APPS=$(needs | sed -n 's/^\(app\|hex\):\([^ ]*\) .*/\2/p' | tr '\n' ' ')
  export WEIR_APPS
  facts=$(erlang_facts)
  erl_root=${facts%% *}
  needs | while read -r what package; do
    name=${what#*:}
    case $what in
      cmd:*) command -v "$name" >/dev/null || [ -x "/usr/sbin/$name" ] ;;
      erl_nif.h) [ -e "$erl_root/usr/include/erl_nif.h" ] ;;
      app:*) has_word "$name" "$facts" ;;
      # With an Erlang that is not Debian's, these come from hex.pm.
      hex:*) has_word "$name" "$facts" || case $erl_root in '' | /usr/lib/erlang) false ;; esac ;;
      inc:*) ls "$erl_root/lib/$name"-*/include/*.hrl >/dev/null 2>&1 || case $erl_root in '' | /usr/lib/erlang) false ;; esac ;;
      lib:*) has_lib "$name" ;;
      py:*) python3 -c "import $name" 2>/dev/null || /usr/bin/python3 -c "import $name" 2>/dev/null ;;
    esac || echo "$package"
  done
}

is_debian() {
  command -v apt-get >/dev/null && command -v dpkg >/dev/null
}

install_packages() {
  packages=$(missing | tr '\n' ' ')
  [ -n "$packages" ] || return 0
  if ! is_debian || [ "$(id -u)" != 0 ]; then
    echo "weir: these are missing, by the names of their Debian packages:" >&2
    echo "  $packages" >&2
    ! is_debian || echo "Install them with:  sudo apt-get install --no-install-recommends $packages" >&2
    exit 1
  fi
  DEBIAN_FRONTEND=noninteractive
  export DEBIAN_FRONTEND
  step "reading the lists of Debian packages" apt-get -o DPkg::Lock::Timeout=300 update
  # shellcheck disable=SC2086 # one word a package
  step "installing $(echo "$packages" | wc -w) Debian packages and what they need" \
    apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $packages
  packages=$(missing | tr '\n' ' ')
  [ -z "$packages" ] || fail "still missing after their installation: $packages"
}

# Unpacks the few applications that weir's server needs; the rest of RabbitMQ stays in the archive.
unpack_server_libs() {
  work=$root/_build/debian
  rm -rf "$work"
  mkdir -p "$work/tmp" "$work/lib.new"
  cd "$work/tmp"
  apt-get download rabbitmq-server
  dpkg-deb --fsys-tarfile rabbitmq-server_*.deb | tar -x --wildcards \
    '*/plugins/cowboy-*' '*/plugins/cowlib-*' '*/plugins/ranch-*' '*/plugins/prometheus-*' \
    '*/plugins/quantile_estimator-*' '*/plugins/eetcd-*' '*/plugins/gun-*' '*/doc/rabbitmq-server/copyright'
  for app in usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins/*; do
    cp -R "$app" "$work/lib.new/"
  done
  cp usr/share/doc/rabbitmq-server/copyright "$work/"
  cd "$work"
  rm -rf tmp
  mv lib.new lib
}

has_server_libs() {
  WEIR_APPS="cowboy cowlib ranch prometheus quantile_estimator eetcd gun"
  export WEIR_APPS
  use_prepared
  facts=$(erlang_facts)
  erl_root=${facts%% *}
  [ "$facts" = "$erl_root $WEIR_APPS" ]
}

install_packages
if ! (has_server_libs) && is_debian && [ -d /usr/lib/erlang ] && [ "$(readlink -f "$(command -v erl)")" = /usr/lib/erlang/bin/erl ]; then
  step "unpacking cowboy, prometheus and eetcd from Debian's rabbitmq-server" unpack_server_libs
fi
if [ "$target" = long ] && is_debian; then
  "$root/scripts/musl.sh"
fi
