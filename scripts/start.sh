#!/bin/sh
# bin/weir: starts the release it lies in.
#
#   bin/weir [start]   in the foreground; SIGTERM, SIGINT (Ctrl-C) and SIGHUP stop it cleanly, exit status 0
#   bin/weir console   the same with an Erlang shell (leave it with q().)
#   bin/weir shell     an Erlang shell on a running node; needs a name and a cookie in vm.args
#   bin/weir version
#
# Environment
#   WEIR_CONFIG         another sys.config; the name must end in .config
#   WEIR_VM_ARGS        another vm.args
#   WEIR_HTTP_PORT      overrides the port of sys.config
#   ERL_CRASH_DUMP      where the VM writes its post-mortem (default: erl_crash.dump beside bin/)
set -eu

fail() {
  echo "weir: $1" >&2
  exit 2
}

self=$0
while [ -L "$self" ]; do
  link=$(readlink "$self")
  case $link in
    /*) self=$link ;;
    *) self=$(dirname "$self")/$link ;;
  esac
done
root=$(cd "$(dirname "$self")/.." && pwd)

# (The file has no final newline, which read calls a failure.)
read -r erts vsn <"$root/releases/start_erl.data" || [ -n "$vsn" ]
release=$root/releases/$vsn
config=${WEIR_CONFIG:-$release/sys.config}
args=${WEIR_VM_ARGS:-$release/vm.args}
case $config in
  *.config) ;;
  *) fail "WEIR_CONFIG=$config: the name must end in .config" ;;
esac
[ -r "$config" ] || fail "cannot read the configuration $config"
[ -r "$args" ] || fail "cannot read the VM arguments $args"

ROOTDIR=$root
BINDIR=$root/erts-$erts/bin
EMU=beam
PROGNAME=weir
ERL_CRASH_DUMP=${ERL_CRASH_DUMP:-$root/erl_crash.dump}
# The libraries that the VM was linked with, for machines that lack them.
[ ! -d "$root/syslib" ] || LD_LIBRARY_PATH=$root/syslib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export ROOTDIR BINDIR EMU PROGNAME ERL_CRASH_DUMP LD_LIBRARY_PATH
# An interpreter of the machine must not add its applications or flags to ours.
unset ERL_LIBS ERL_FLAGS ERL_AFLAGS ERL_ZFLAGS

case ${1:-start} in
  version)
    echo "weir $vsn"
    exit 0
    ;;
  console)
    exec "$BINDIR/erlexec" -boot "$release/start" -mode embedded -config "$config" -args_file "$args"
    ;;
  shell)
    name=$(sed -n 's/^-\(sname\|name\)  *\([^ ]*\).*/\1 \2/p' "$args")
    cookie=$(sed -n 's/^-setcookie  *\([^ ]*\).*/\1/p' "$args")
    [ -n "$name" ] && [ -n "$cookie" ] || fail "$args sets no -sname (or -name) and -setcookie: the node is not distributed"
    node=${name#* }
    case $node in
      *@*) ;;
      *) node=$node@$(uname -n | cut -d. -f1) ;;
    esac
    # (Distribution over TLS, doc/cluster.md: the shell speaks what the node speaks.)
    tls=$(sed -n 's/^-\(proto_dist\|ssl_dist_optfile\)  *\([^ ]*\).*/-\1 \2/p' "$args")
    # shellcheck disable=SC2086 # one word a flag
    exec "$BINDIR/erlexec" -boot "$release/start_clean" "-${name% *}" "shell$$@${node#*@}" -setcookie "$cookie" $tls \
      -hidden -remsh "$node"
    ;;
  start) ;;
  *) sed -n '2,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$self"; exit 2 ;;
esac

# The VM can't turn Ctrl-C into an orderly stop, so it ignores it (+Bi), and this shell, which stays in front of it, asks it
# to stop: init:stop() is what SIGTERM means to the VM. A terminal that hangs up tells the whole group; the VM leaves that to
# this shell as well.
(
  trap '' HUP
  exec "$BINDIR/erlexec" -boot "$release/start" -mode embedded -config "$config" -args_file "$args" -noinput +Bi
) &
vm=$!
trap 'kill -TERM "$vm" 2>/dev/null || :' TERM INT HUP
while :; do
  status=0
  wait "$vm" || status=$?
  # A status above 128 is also what wait gives when a signal comes in between.
  kill -0 "$vm" 2>/dev/null || break
done
exit "$status"
