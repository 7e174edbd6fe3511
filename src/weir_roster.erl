%% @private
%% @doc What this node knows of the others, for all who read it: a table of the supervisor's that outlives weir_members.
%%
%% weir_members writes its members and how it stands itself, weir_owner which nodes share the keys out, weir_replica the run that
%% its machine was made for; each through this module. Others read without a message. The few that have to wait for weir_members
%% do it here too, so that nothing which is told of changes depends on the module that tells.
%%
%% ```
%% {{member, Node}, Member}  {{left, Node}, Incarnation, WhenMs}  {{refused, Node}, Reason}          weir_roster_core
%% {phase, starting | ready | left}  {farewell, bye | stop}  {node, Node}  {incarnation, Run}  {joining, Boolean}
%% {secret, Id}  {before, Id | none}  {tokens, Secret}                                               weir_members
%% {machine, Run}  {readiness, {starting | ready, MonotonicMs}}                                      weir_replica, weir_ready
%% {owners, Numbers, Names}  {owned, Asked, Answered, Here}                                          weir_owner
%% '''
-module(weir_roster).

%% Members.
-export([members/0, others/0, connected/0, away/0, looked_for/0, refused/0, is_member/1, terms/1, token/1]).
%% This node.
-export([phase/0, left/0, incarnation/0, await_start/0, take_limiters/0]).
-export([machine_run/0, set_machine_run/1, ready_since/0, set_ready/0]).
%% Owners of keys.
-export([owners/0, set_owners/2, owned/0, count_owned/2]).
%% The table, for weir_members.
-export([make_table/1, rows/0, put/1, delete/1]).

-type id() :: weir_roster_core:id().
-type member() :: weir_roster_core:member().

-define(NONE_OWNED, {owned, 0, 0, 0}).

%% ---- members ----

%% @doc Those that are registered.
-spec members() -> [member()].
members() ->
    [Member || Member <- names(), weir_roster_core:is_registered(Member)].

%% @doc The other nodes that are registered, connected or not.
-spec others() -> [{node(), id()}].
others() ->
    [{Node, Id} || #{node := Node, id := Id} <- members()].

-spec connected() -> [node()].
connected() ->
    [Node || #{node := Node, away_since := none} <- members()].

-spec away() -> [node()].
away() ->
    [Node || #{node := Node, away_since := Since} <- members(), Since =/= none].

%% @doc The nodes that this one wants to be connected to.
-spec looked_for() -> [node()].
looked_for() ->
    [Node || phase() =/= left, #{node := Node} <- names()].

-spec refused() -> #{node() => weir_hello:reason()}.
refused() ->
    maps:from_list([{Node, Reason} || [Node, Reason] <- match({{refused, '$1'}, '$2'})]).

-spec is_member(node()) -> boolean().
is_member(Node) ->
    weir_roster_core:is_registered(own({member, Node}, none)).

%% @doc How to talk to a member, and the run of it that was accepted; `none' of one that hasn't said hello, or is refused.
-spec terms(node()) -> {Incarnation :: non_neg_integer(), weir_hello:terms() | none}.
terms(Node) ->
    case own({member, Node}, none) of
        #{incarnation := Incarnation, terms := Terms} -> {Incarnation, Terms};
        none -> {0, none}
    end.

%% @doc What a node has to put into its frames for this one, to be known by.
-spec token(node()) -> <<_:64>>.
token(Node) ->
    <<Token:8/binary, _/binary>> = crypto:mac(hmac, sha256, own(tokens, <<>>), atom_to_binary(Node)),
    Token.

%% ---- this node ----

-spec phase() -> starting | ready | left.
phase() ->
    own(phase, starting).

%% @doc Whether this node has left the cluster: for good, or as weir is being stopped here.
-spec left() -> no | bye | stop.
left() ->
    case phase() of
        left -> own(farewell, bye);
        _ -> no
    end.

%% @doc 0 before the start is over.
-spec incarnation() -> non_neg_integer().
incarnation() ->
    own(incarnation, 0).

%% @doc This node's incarnation, and whether it is to copy the others' state. Waits for the others' answers, a second at most.
-spec await_start() -> #{incarnation := pos_integer(), joining := boolean()}.
await_start() ->
    try gen_server:call(weir_members, start, infinity)
    catch exit:{noproc, _} -> #{incarnation => own(incarnation, 1), joining => true}
    end.

%% @doc What the others told of limiters when this node started; once.
-spec take_limiters() -> [weir_specs:told()].
take_limiters() ->
    try gen_server:call(weir_members, take_limiters, infinity)
    catch exit:{noproc, _} -> []
    end.

%% @doc The incarnation that the machine was made with.
-spec machine_run() -> none | pos_integer().
machine_run() ->
    own(machine, none).

-spec set_machine_run(pos_integer()) -> ok.
set_machine_run(Incarnation) ->
    put([{machine, Incarnation}]).

%% @doc See weir_ready. (Before weir has started, and after: it starts.)
-spec ready_since() -> {ready | starting, MonotonicMs :: integer()}.
ready_since() ->
    own(readiness, {starting, erlang:monotonic_time(millisecond)}).

-spec set_ready() -> ok.
set_ready() ->
    unless_stopping(fun() -> ets:insert(?MODULE, {readiness, {ready, erlang:monotonic_time(millisecond)}}) end).

%% ---- owners ----

%% @doc The nodes that share the keys of `scope => exact' out, as numbers and as names, each in the same order.
-spec owners() -> {Numbers :: tuple(), Names :: tuple()}.
owners() ->
    {_, Numbers, Names} = row(owners, {owners, {}, {}}),
    {Numbers, Names}.

-spec set_owners(tuple(), tuple()) -> ok.
set_owners(Numbers, Names) ->
    unless_stopping(fun() -> ets:insert(?MODULE, {owners, Numbers, Names}) end).

%% @doc Decisions asked of other nodes, made for other nodes, and made by callers here because no owner answered in time.
-spec owned() -> #{asked | answered | here => non_neg_integer()}.
owned() ->
    {_, Asked, Answered, Here} = row(owned, ?NONE_OWNED),
    #{asked => Asked, answered => Answered, here => Here}.

-spec count_owned(asked | answered | here, non_neg_integer()) -> ok.
count_owned(_What, 0) ->
    ok;
count_owned(What, Count) ->
    Place = case What of asked -> 2; answered -> 3; here -> 4 end,
    unless_stopping(fun() -> ets:update_counter(?MODULE, owned, {Place, Count}, ?NONE_OWNED) end).

%% ---- the table ----

%% @doc It belongs to the caller. The id of the secret is in a fun, so that it is in no log.
-spec make_table(fun(() -> weir_secret:id())) -> ok.
make_table(SecretId) ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {write_concurrency, true}, {read_concurrency, true}]),
    put([{secret, SecretId()}, {before, none}, {phase, starting}, {node, node()}, {tokens, crypto:strong_rand_bytes(16)},
         {readiness, {starting, erlang:monotonic_time(millisecond)}}]).

-spec rows() -> [tuple()].
rows() ->
    ets:tab2list(?MODULE).

-spec put([tuple()]) -> ok.
put(Rows) ->
    true = ets:insert(?MODULE, Rows),
    ok.

-spec delete(term()) -> ok.
delete(Key) ->
    true = ets:delete(?MODULE, Key),
    ok.

own(What, Default) ->
    try ets:lookup_element(?MODULE, What, 2)
    catch error:badarg -> Default
    end.

row(Key, Default) ->
    try ets:lookup(?MODULE, Key) of
        [Row] -> Row;
        [] -> Default
    catch error:badarg -> Default
    end.

names() ->
    [Member || [Member] <- match({{member, '_'}, '$1'})].

match(Pattern) ->
    try ets:match(?MODULE, Pattern)
    catch error:badarg -> []
    end.

%% The table goes when weir stops.
unless_stopping(Change) ->
    _ = try Change()
        catch error:badarg -> stopping
        end,
    ok.
