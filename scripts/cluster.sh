#!/bin/sh
# Five nodes of the release on this machine, as one cluster. `make cluster` builds the release and runs it.
#
#   scripts/cluster.sh                 starts them in the foreground, HTTP on 127.0.0.1:8081 to 8085; Ctrl-C stops all
# and, from another terminal:
#   scripts/cluster.sh status          who sees whom
#   scripts/cluster.sh kill 3          kills node 3, as a power cut would
#   scripts/cluster.sh start 3         starts it again
#   scripts/cluster.sh partition 1 2   cuts nodes 1 and 2 off from the others
#   scripts/cluster.sh heal            mends all cuts
#
# Environment
#   WEIR_CLUSTER_NODES   how many (5)
#   WEIR_CLUSTER_PORT    HTTP of the first one (8081)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"

count=${WEIR_CLUSTER_NODES:-5}
first=${WEIR_CLUSTER_PORT:-8081}
rel=$root/_build/server/rel/weir
home=$root/_build/cluster
cookie_file=$home/cookie
# A port mapper of its own, which ends with it.
ERL_EPMD_PORT=${WEIR_CLUSTER_EPMD:-43690}
ERL_EPMD_ADDRESS=127.0.0.1
export ERL_EPMD_PORT ERL_EPMD_ADDRESS

name_of() { echo "weir$1@127.0.0.1"; }
all() { seq 1 "$count"; }

is_node() {
  case $1 in
    '' | *[!0-9]*) return 1 ;;
  esac
  [ "$1" -ge 1 ] && [ "$1" -le "$count" ]
}

# configure NODE: its own sys.config and vm.args.
configure() {
  dir=$home/$1
  mkdir -p "$dir"
  names=
  for n in $(all); do names="$names${names:+, }\"$(name_of "$n")\""; done
  cat >"$dir/sys.config" <<END
[{weir, [{limiters, #{login => #{rate => {5, minute}, burst => 5, scope => exact},
                      api => #{rate => {100, second}, burst => 200, scope => cluster}}},
         {discovery, {list, #{nodes => [$names]}}},
         {http, #{ip => "127.0.0.1", port => $((first + $1 - 1))}}]},
 {kernel, [{logger_level, notice},
           {logger, [{handler, default, logger_std_h,
                      #{formatter => {logger_formatter, #{single_line => true, template => ["node $1: ", msg, "\n"]}}}}]}]}].
END
  cat >"$dir/vm.args" <<END
-name $(name_of "$1")
-setcookie $(cat "$cookie_file")
-kernel inet_dist_use_interface {127,0,0,1}
-kernel dist_auto_connect never
+sbwt none
+S 2
END
}

# launch NODE [COMMAND...]: in the background, by that command.
launch() {
  dir=$home/$1
  configure "$1"
  shift
  WEIR_CONFIG=$dir/sys.config WEIR_VM_ARGS=$dir/vm.args ERL_CRASH_DUMP=/dev/null "$@" "$rel/bin/weir" &
  echo $! >"$dir/pid"
}

# Says by curl whether a node answers.
answers() { curl -sf -m 1 "http://127.0.0.1:$((first + $1 - 1))/healthz" >/dev/null 2>&1; }

# eval_on NODE EXPRESSION: evaluates it in a hidden node that knows the cookie, which calls the node by `On(M, F, A)`.
eval_on() {
  vsn=$(cut -d' ' -f2 "$rel/releases/start_erl.data")
  erts=$(cut -d' ' -f1 "$rel/releases/start_erl.data")
  LD_LIBRARY_PATH=$rel/syslib ROOTDIR=$rel BINDIR=$rel/erts-$erts/bin EMU=beam PROGNAME=weir \
    "$rel/erts-$erts/bin/erlexec" -boot "$rel/releases/$vsn/start_clean" -boot_var RELEASE_DIR "$rel" -noinput -hidden \
    -name "control$$@127.0.0.1" -setcookie "$(cat "$cookie_file")" -kernel inet_dist_use_interface '{127,0,0,1}' -eval "
      Node = '$(name_of "$1")',
      true = net_kernel:connect_node(Node),
      On = fun(M, F, A) -> erpc:call(Node, M, F, A, 5000) end,
      $2,
      halt(0)." 2>/dev/null
}

# others SIDE NODE: the names of the nodes on the other side of a cut, as an Erlang list.
others() {
  names=
  for n in $(all); do
    case " $1 " in *" $2 "*) mine=yes ;; *) mine=no ;; esac
    case " $1 " in *" $n "*) its=yes ;; *) its=no ;; esac
    [ "$mine" = "$its" ] || names="$names${names:+, }'$(name_of "$n")'"
  done
  echo "[$names]"
}

running() { [ -r "$cookie_file" ] || fail "no cluster runs here: start it with make cluster"; }

sleeper=

stop_all() {
  trap '' INT TERM
  [ -z "$sleeper" ] || kill "$sleeper" 2>/dev/null || :
  for n in $(all); do
    [ ! -r "$home/$n/pid" ] || kill -TERM "$(cat "$home/$n/pid")" 2>/dev/null || :
  done
  # Those that `start` launched are not this shell's children.
  for n in $(all); do
    while [ -r "$home/$n/pid" ] && kill -0 "$(cat "$home/$n/pid")" 2>/dev/null; do sleep 0.1; done
  done
  "$rel"/erts-*/bin/epmd -kill >/dev/null 2>&1 || :
  rm -f "$cookie_file" "$home"/*/pid
}

run() {
  [ -x "$rel/bin/weir" ] || fail "the release isn't built: make cluster builds it"
  [ ! -e "$cookie_file" ] || fail "a cluster runs here already (or died: then remove $cookie_file)"
  mkdir -p "$home"
  umask 077
  od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$cookie_file"
  trap 'exit 0' INT TERM
  trap stop_all EXIT
  for n in $(all); do launch "$n"; done
  for n in $(all); do
    tries=0
    until answers "$n"; do
      tries=$((tries + 1))
      [ "$tries" -lt 300 ] || fail "node $n doesn't answer on port $((first + n - 1))"
      sleep 0.2
    done
  done
  say "$count nodes run, on http://127.0.0.1:$first to $((first + count - 1)); Ctrl-C stops them. Try, in another terminal:"
  cat <<END
    for port in $(for n in $(all); do printf '%s ' $((first + n - 1)); done)$first $first; do
      curl -s http://127.0.0.1:\$port/v1/check -d '{"limiter": "login", "key": "1.2.3.4"}'; echo; done
    scripts/cluster.sh status
END
  # A node that is killed and started again isn't this shell's child: only a signal ends this.
  while :; do
    sleep 3600 &
    sleeper=$!
    wait "$sleeper" || :
  done
}

case ${1:-run} in
  run) run ;;
  status)
    running
    for n in $(all); do
      if ! answers "$n"; then
        echo "node $n: down"
        continue
      fi
      eval_on "$n" "#{members := Members} = On(weir_members, status, []),
        Sees = fun(State) -> [hd(string:split(atom_to_list(N), [\$@])) || {N, #{state := S}} <- lists:sort(maps:to_list(Members)), S =:= State] end,
        io:format(\"node $n: up; connected with ~ts; away: ~ts~n\",
                  [case Sees(S) of [] -> \"none\"; Names -> lists:join(\" \", Names) end || S <- [connected, away]])" ||
        echo "node $n: up, but doesn't answer"
    done
    ;;
  kill)
    running
    is_node "${2:-}" || fail "which node? scripts/cluster.sh kill 3"
    eval_on "$2" "erlang:monitor_node(Node, true), erpc:cast(Node, erlang, halt, [137, [{flush, false}]]),
      receive {nodedown, Node} -> ok after 5000 -> halt(1) end" || :
    say "node $2 is gone"
    ;;
  start)
    running
    is_node "${2:-}" || fail "which node? scripts/cluster.sh start 3"
    ! answers "$2" || fail "node $2 runs"
    # It outlives this terminal, as the others do.
    launch "$2" setsid >"$home/$2/log" 2>&1 </dev/null
    until answers "$2"; do sleep 0.2; done
    say "node $2 is back (its output: $home/$2/log)"
    ;;
  partition)
    running
    shift
    [ $# -gt 0 ] || fail "which nodes? scripts/cluster.sh partition 1 2"
    for a in "$@"; do
      is_node "$a" || fail "there is no node $a: they are 1 to $count"
    done
    # The sides hold different cookies for each other: they can't connect. All know that before the first is disconnected.
    for step in 'On(erlang, set_cookie, [Other, Cut])' 'On(erlang, disconnect_node, [Other])'; do
      for a in $(all); do
        answers "$a" || continue
        eval_on "$a" "Cut = list_to_atom(\"cut\" ++ atom_to_list(Node)), [$step || Other <- $(others "$*" "$a")]" || :
      done
    done
    say "nodes $* are cut off from the others"
    ;;
  heal)
    running
    for a in $(all); do
      answers "$a" || continue
      eval_on "$a" "[On(erlang, set_cookie, [Other, '$(cat "$cookie_file")']) || Other <- $(others "$a" "$a")]" || :
    done
    say "the cuts are mended; the nodes find each other again within seconds"
    ;;
  *) sed -n '2,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$0"; exit 2 ;;
esac
