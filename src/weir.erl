%% @doc weir: rate limiting in the time of a function call.
%%
%% ```
%% ok = weir:put_limiter(login, #{rate => {5, minute}}),
%% case weir:check(login, Ip) of
%%     {allow, _Left} -> proceed();
%%     {deny, Ms}     -> retry_after(Ms)
%% end.
%% '''
%%
%% A <em>limiter</em> is a named policy; a <em>key</em> is what it is applied to, any term; <em>hits</em> are what a
%% request costs, a positive integer. A limiter of rate {N, Unit} and burst c has a bucket for each key. It holds c
%% tokens at first, and one more comes back every Unit / N, up to c. So a key may get more than N in a Unit: c at once,
%% and N that come back.
%%
%% The nodes of an Erlang cluster that run weir limit together (doc/cluster.md), and limiters are the same on all. With
%% `scope => cluster', the default, a key has one bucket for all nodes. Each node decides at once, on what it knows, and
%% tells the others. `Remaining' is then the most that may remain, and callers on several nodes at the same moment may
%% get some tokens too much (README.md has numbers). With `scope => local' each node has a bucket of its own. With
%% `scope => exact' each key is decided by one node, its owner, so that never more is admitted than the bucket holds.
%%
%% No function here sends a message to decide, with two exceptions: `scope => exact', and hits above a node's share of
%% what remains under `large_hits => claim'. These wait for the limiter's `timeout' at most. Keys are kept as a 64-bit
%% keyed hash, not as themselves: binaries, atoms, numbers, and tuples of these (IP addresses) are hashed with their
%% type, so `1', `1.0', `<<"1">>' and `'1'' are four keys; other terms go by their deterministic external format, which
%% is slower. (The string `"1"' is a list, so it is converted on every call: `<<"1">>' is faster.)
%%
%% Caps: a node has at most 16384 limiters with a name, and as many policies of {@link compile/1} in use. A key has at
%% most 64 KiB; for a longer one use a hash as key. A limiter holds at most `max_keys' keys; then a new key takes the
%% place of the least-used one of some that lie near it, and what was lost is counted. A key takes 18 to 24 bytes on a
%% node, and 28 to 30 more where it is shared with other nodes.
%%
%% Errors: an unknown limiter or a bad argument raises `badarg' with an explanation (shells and loggers print it,
%% {@link weir_error:explain/2} returns it). A fault of weir's own, or a limiter that is deleted during the call, is
%% answered as the limiter's `on_error' says, and counted. These exceptions hold no keys. (Without its NIF weir doesn't
%% start. A check made nevertheless raises the VM's `undef', whose stack trace holds the arguments.)
-module(weir).

%% Deciding.
-export([check/2, check/3, check_many/1, decide/3, decide_many/1]).
%% Looking at keys, and resetting them.
-export([peek/2, reset/2, explain/2]).
%% Limiters.
-export([put_limiter/2, delete_limiter/1, limiters/0, sources/0, compile/1]).
%% The cluster.
-export([leave/0, rotate_secret/0, rotate_secret/1]).
%% Under an application's own supervisor.
-export([child_spec/1]).

-export_type([limiter/0, handle/0, key/0, hits/0, answer/0, decision/0, look/0, source/0]).

%% A macro, not a function: the top frame of the stack is then the function that was called, and shells name it.
%% Without the arguments: keys stay out of stack traces, and so out of logs.
-define(RAISE(Cause), erlang:error(badarg, none, [{error_info, #{module => weir_error, cause => Cause}}])).

-opaque handle() :: reference().
-type limiter() :: weir_limiter:name() | handle().
-type key() :: term().
-type hits() :: pos_integer().
-type answer() :: {allow, Remaining :: non_neg_integer()} | {deny, RetryAfterMs :: pos_integer() | infinity}.
%% `limit' is the capacity, `reset_ms' the time until all tokens are back, `retry_ms' 0 when allowed and `infinity' when
%% the hits exceed the capacity.
-type look() :: weir_nif:look().
%% The same, with `reason':
%%
%% - `ok': admitted, and counted
%% - `limited': denied, as the key has used too much
%% - `shadow': would be denied, but the limiter is in shadow and lets it pass; the key is charged nothing
%% - `error': weir could not decide, and answered as `on_error' says
%% - `partition': denied, as this is the smaller side of a partition and the limiter is `closed' there
-type decision() :: weir_nif:decision().

%% Where a limiter's specification comes from: `by' a call (`put') of {@link put_limiter/2} on `node', or `configured' on
%% `node', with the `config_version' that was given there. `at_ms' is Unix time: of the call, or of that node's start.
%% `unknown' is what nodes of older releases tell.
-type source() :: weir_source:shown().

%% @equiv check(Limiter, Key, 1)
-spec check(limiter(), key()) -> answer().
check(Limiter, Key) ->
    check(Limiter, Key, 1).

%% @doc Decides, and counts what is allowed. A denial counts nothing. `RetryAfterMs' is when the same hits would be
%% allowed if nobody else came, `infinity' if there are more of them than the bucket holds.
%%
%% Cost: about four calls of an empty NIF.
-spec check(limiter(), key(), hits()) -> answer().
check(Limiter, Key, Hits) ->
    case weir_table:check(Limiter, Key, Hits) of
        {allow, _} = Answer -> Answer;
        {deny, _} = Answer -> Answer;
        Wrong ->
            case weir_decide:check(Wrong, Limiter, Key, Hits) of
                {_, _} = Answer -> Answer;
                StillWrong -> ?RAISE(cause(Limiter, StillWrong))
            end
    end.

%% @doc Decides many requests on their own, in their order, in one call. A malformed one raises before any is counted.
%% Those that other nodes decide (`scope => exact', and large hits under `large_hits => claim') are asked about at the
%% same time, once the others are decided. A list of any length does: a call of the NIF takes 512 requests or 64 KB of
%% keys, and each key is hashed once.
%%
%% Cost: 20 to 50 ns per request in batches of 100.
-spec check_many([{limiter(), key(), hits()}]) -> [answer()].
check_many(Items) ->
    case weir_decide:check_many(Items) of
        Answers when is_list(Answers) -> Answers;
        Wrong -> ?RAISE(cause(Items, Wrong))
    end.

%% @doc As {@link check/3}, with all that a response's headers need, and the reason.
-spec decide(limiter(), key(), hits()) -> decision().
decide(Limiter, Key, Hits) ->
    case weir_decide:decide(Limiter, Key, Hits) of
        #{} = Decision -> Decision;
        Wrong -> ?RAISE(cause(Limiter, Wrong))
    end.

%% @doc As {@link check_many/1}, with all that responses' headers need, and the reasons.
-spec decide_many([{limiter(), key(), hits()}]) -> [decision()].
decide_many(Items) ->
    case weir_decide:decide_many(Items) of
        Decisions when is_list(Decisions) -> Decisions;
        Wrong -> ?RAISE(cause(Items, Wrong))
    end.

%% @doc What {@link decide/3} would say of one hit, without counting it: `remaining' is before the hit, and there is no
%% reason.
-spec peek(limiter(), key()) -> look().
peek(Limiter, Key) ->
    case weir_table:peek(Limiter, Key) of
        #{} = Decision -> Decision;
        Wrong -> ?RAISE(cause(Limiter, Wrong))
    end.

%% @doc Gives the key all its tokens. With `scope => exact' it waits until the other nodes have heard of it, and have
%% forgotten what they knew of the key. Each of the two takes the limiter's `timeout' at most (twice that while a rotation
%% of the secret is under way). Nodes that are connected and didn't answer by then are named in the error: they may deny
%% the key for two seconds more. A node that is away hears of the reset when it is back.
%%
%% With `scope => cluster' and `exact' a reset can fail. Then what the other nodes know of the key still counts: try
%% again later. `too_many_resets': 65536 keys were reset within the time that their limiters look back (twice the time
%% in which a bucket fills), or the limiter was deleted meanwhile. `unavailable': the part of weir that tells the other
%% nodes doesn't answer within 5 s.
-spec reset(limiter(), key()) -> ok | {error, too_many_resets | unavailable | {not_reached, [node()]}}.
reset(Limiter, Key) ->
    case weir_decide:reset(Limiter, Key) of
        ok -> ok;
        {error, {not_reached, _}} = Error -> Error;
        {error, Reason} when Reason =:= too_many_resets; Reason =:= unavailable -> {error, Reason};
        Wrong -> ?RAISE(cause(Limiter, Wrong))
    end.

%% @doc Why a key is decided as it is: what {@link peek/2} says, the limiter's `capacity', `interval_ns' (one token
%% comes back in this time), `scope', `algorithm', `shadow' and `on_error', the key's `level' (tokens in use) and
%% `tat_ns' (theoretical arrival time: Unix time at which all tokens are back), `now_ns', and the limiter's `table':
%% keys held and at most, bytes (with what is held for other nodes), and what was evicted. With `scope => cluster' and
%% `exact' also what weir_report:explain/3 says: tokens of this node that the others don't know yet, how many it may
%% have of these, what may be and was admitted beyond the capacity, and how it stands with the other nodes. With `exact'
%% also the key's `owner', and the `second', its backup. (The level is what is known here, which may be less than what
%% the owner knows.)
%%
%% A limiter with a name has a `source', see {@link sources/0}. `advice' is a sentence, there when another scope is worth
%% considering: the burst is small for so many nodes.
%%
%% Not for every request: with other nodes it waits for a dirty scheduler while the replica is busy.
-spec explain(limiter(), key()) -> map().
explain(Limiter, Key) ->
    case weir_table:explain(Limiter, Key) of
        #{} = Explained ->
            Of = maps:merge(Explained, weir_report:explain(Limiter, Key, Explained)),
            Of#{limiter => display(Limiter), algorithm => token_bucket};
        Wrong -> ?RAISE(cause(Limiter, Wrong))
    end.

%% @doc Makes a limiter, or changes the one of that name: every key keeps its level, up to the new burst. `max_keys' and
%% `scope' are chosen when a limiter is made. Takes about 20 ns per key of a limiter that is changed; decisions go on
%% meanwhile. All connected nodes of the cluster are told, and the others when they are back: the last change wins. It
%% counts more than any node's configuration, from then on.
-spec put_limiter(weir_limiter:name(), weir_limiter:spec()) -> ok.
put_limiter(Name, Spec) ->
    case weir_registry:put(Name, Spec) of
        ok -> ok;
        {error, Message} -> ?RAISE({message, Message})
    end.

%% @doc Deletes a limiter and what it knows of its keys. Calls that are under way are answered as its `on_error' says,
%% later ones raise.
-spec delete_limiter(weir_limiter:name()) -> ok.
delete_limiter(Name) ->
    case weir_registry:delete(Name) of
        ok -> ok;
        unknown_limiter -> ?RAISE({unknown_limiter, Name});
        {error, Message} -> ?RAISE({message, Message})
    end.

%% @doc All limiters and their specifications, every option filled in.
-spec limiters() -> #{binary() => weir_limiter:spec()}.
limiters() ->
    weir_specs:specs().

%% @doc Where each limiter's specification comes from, so why this one and not another node's is in force
%% (doc/cluster.md).
-spec sources() -> #{binary() => source()}.
sources() ->
    weir_specs:sources().

%% @doc A limiter without a name, for policies that come with the call. Policies that decide alike share one, and so
%% their keys' levels. It lasts while a handle of it is held or a key of it has a level. Its scope is `local': of this
%% node alone. At most 16384 are in use at a time; one more raises.
%%
%% Keep the handle where you can: compiling costs about 2 us.
-spec compile(weir_limiter:spec()) -> handle().
compile(Spec) ->
    case weir_registry:compile(Spec) of
        {ok, Handle} -> Handle;
        {error, Message} -> ?RAISE({message, Message})
    end.

%% @doc Takes this node out of the cluster for good, as before it is shut down never to come back: the others are sent
%% what they don't know yet, and then do without it. From there on it decides alone, until weir is started again.
%%
%% A node that will be back, as after an update, need not leave: it is missed, and then takes up its place.
-spec leave() -> ok.
leave() ->
    try weir_members:leave(bye)
    catch exit:{noproc, _} -> ?RAISE({message, "weir is not started: call application:ensure_all_started(weir)"})
    end.

%% @equiv rotate_secret(#{})
-spec rotate_secret() -> ok | {error, Message :: binary()}.
rotate_secret() ->
    rotate_secret(#{}).

%% @doc Takes the next secret into use on all members of the cluster; levels are kept (doc/cluster.md). The error is a
%% sentence that names the nodes which can't follow: those out of reach, and those without the same `next_secret'.
%%
%% Levels are carried over when their keys are asked for: for as long as they matter, but for `carry_ms' of weir's
%% environment at most, a day by default. Until then the next rotation is an error that says how long to wait.
%% `#{force => true}' doesn't wait, for a secret that has leaked: levels that weren't carried over yet are forgotten.
%%
%% When all nodes have the secret in use already, it only tells those that missed it.
-spec rotate_secret(#{force => boolean()}) -> ok | {error, Message :: binary()}.
rotate_secret(Options) ->
    case Options of
        #{force := Force} when is_boolean(Force), map_size(Options) =:= 1 -> ok;
        #{} when map_size(Options) =:= 0 -> ok;
        _ -> ?RAISE({message, "the options of rotate_secret are a map of force, which is true or false"})
    end,
    try weir_rotation:rotate(maps:get(force, Options, false))
    catch exit:{noproc, _} -> ?RAISE({message, "weir is not started: call application:ensure_all_started(weir)"})
    end.

%% @doc For `{weir, Opts}' among the children of a supervisor: makes the limiters of `Opts', after starting weir if
%% need be. `Opts' is a map or a property list with `limiters'.
%%
%% The child is a small process, which decisions don't need. When weir was stopped and is started again, it makes the
%% limiters again, within a second; until then a check raises. It doesn't start weir again, nor end with it. When the
%% child itself ends, its limiters stay.
-spec child_spec(#{limiters => Limiters} | [{limiters, Limiters}]) -> supervisor:child_spec()
              when Limiters :: #{weir_limiter:name() => weir_limiter:spec()} | [{weir_limiter:name(), weir_limiter:spec()}].
child_spec(Opts) ->
    #{id => ?MODULE, start => {weir_child, start_link, [Opts]}, type => worker, restart => permanent}.

%% ---- internal ----

display(Name) when is_atom(Name) -> atom_to_binary(Name);
display(Name) when is_binary(Name) -> Name;
display(Handle) when is_reference(Handle) -> compiled.

%% What weir_error is told. The first argument is what the caller gave: a limiter, or the items of a batch.
cause(Items, {item, Index, Wrong}) -> {item, Index, cause(element_or(Items, Index), Wrong)};
cause(Limiter, unknown_limiter) -> {unknown_limiter, Limiter};
cause(_, Wrong) -> Wrong.

%% The limiter of the item; the items are as the caller gave them, so nothing is sure of their shape.
element_or(Items, Index) ->
    case lists:nth(Index + 1, Items) of
        Item when is_tuple(Item), tuple_size(Item) > 0 -> element(1, Item);
        Item -> Item
    end.
