%% @private
%% @doc The nodes that a node knows by name: members and those that are looked for, those that left, those that are refused. Pure.
%%
%% A roster is kept twice: by the process that changes it, and as rows of weir_members' table, which others read and which outlives
%% the process. So each change is also an effect, between those that the rules ask for ({@link do/2}); {@link effects/1} gives all,
%% and {@link restore/1} makes the roster of the rows again. Between two effects the process may be killed: see there.
%%
%% ```
%% {{member, Node}, Member}    {{left, Node}, Incarnation, WhenMs}    {{refused, Node}, Reason}
%% '''
%%
%% What others say adds names up to `?MAX_NAMES', and `?MAX_LEFT' nodes that left are remembered, for `?KEEP_LEFT_MS'.
-module(weir_roster_core).

-compile({no_auto_import, [put/2]}).

-export([new/0, restore/1, do/2, effects/1, id/1]).
-export([put/2, drop/2, lookup/2, members/1, registered/1, connected/1, is_registered/1, same/3, incarnation/2, told/2, has_room/1]).
-export([hearsay/1, hearsay/2, remember_left/4, has_left/2, forget_left/2, refuse/3, pardon/2, refused/1, refused/2]).

-export_type([roster/0, member/0, id/0, standing/0, ms/0]).

-type id() :: 0..16#ffffffff.
%% Monotonic.
-type ms() :: integer().
%% Registered are those that this node has `met', those that are `confirmed' by members, and those that are `stopping' in order.
%% Only looked for are those that some member named (`heard'), and those that `stopped'.
-type standing() :: met | confirmed | heard | stopping | stopped.
%% `away_since' is `none' while the node is connected and runs weir.
-type member() :: #{node := node(), id := id(), standing := standing(), incarnation := non_neg_integer(), away_since := none | ms(),
                    terms := none | weir_hello:terms()}.

%% How long a node's leaving is remembered, so that nobody who missed it brings the node back; and of how many, the last.
-define(KEEP_LEFT_MS, 86400000).
-define(MAX_LEFT, 1024).
-define(MAX_NAMES, 8192).

%% `ids' are the numbers of those that are registered; `effects' come the last one first. What members say of others, none is asked
%% for again: of a restored roster it is empty.
-record(roster, {members = #{} :: #{node() => member()}, ids = #{} :: #{id() => node()},
                 left = #{} :: #{node() => {Incarnation :: non_neg_integer(), ms()}},
                 refused = #{} :: #{node() => weir_hello:reason()}, hearsay = weir_hearsay:new() :: weir_hearsay:hearsay(),
                 effects = [] :: [term()]}).
-opaque roster() :: #roster{}.

-spec new() -> roster().
new() -> #roster{}.

%% @doc From the rows of a table; others in it are left alone. A process that is killed in the middle of its changes leaves both rows
%% of a node that left, or of one that came back: who is away has left.
-spec restore([tuple()]) -> roster().
restore(Rows) ->
    Roster = lists:foldl(fun row/2, new(), Rows),
    Both = maps:values(maps:with(maps:keys(Roster#roster.left), Roster#roster.members)),
    lists:foldl(fun(#{node := Node, away_since := none}, R) -> stays(Node, R);
                   (#{node := Node}, R) -> drop(Node, R)
                end, Roster#roster{effects = []}, Both).

row({{member, _}, Member}, Roster) -> put(Member, Roster);
row({{left, Node}, Incarnation, At}, #roster{left = Left} = Roster) -> Roster#roster{left = Left#{Node => {Incarnation, At}}};
row({{refused, Node}, Reason}, #roster{refused = Refused} = Roster) -> Roster#roster{refused = Refused#{Node => Reason}};
row(_, Roster) -> Roster.

%% @doc Also this is to be done, after what was done so far.
-spec do(term(), roster()) -> roster().
do(Effect, #roster{effects = Effects} = Roster) -> Roster#roster{effects = [Effect | Effects]}.

%% @doc What is to be done, in this order: {put, Rows} and {delete, Key} in the table, and what else was asked for.
-spec effects(roster()) -> {[term()], roster()}.
effects(#roster{effects = Effects} = Roster) -> {lists:reverse(Effects), Roster#roster{effects = []}}.

%% @doc The number of a node: see weir_members:node_id/1.
-spec id(node()) -> id().
id(Node) -> erlang:phash2(atom_to_binary(Node), 1 bsl 32).

%% ---- members ----

-spec put(member(), roster()) -> roster().
put(#{node := Node, id := Id} = Member, #roster{members = Members, ids = Ids} = Roster) ->
    case Members of
        #{Node := Member} -> Roster;
        #{} -> do({put, [{{member, Node}, Member}]},
               Roster#roster{members = Members#{Node => Member},
                             ids = case is_registered(Member) of true -> Ids#{Id => Node}; false -> without(Id, Node, Ids) end})
    end.

%% @doc Nothing is known of the node any more, but that it left if it did.
-spec drop(node(), roster()) -> roster().
drop(Node, #roster{members = Members, ids = Ids} = Roster) ->
    case maps:take(Node, Members) of
        {#{id := Id}, Rest} -> do({delete, {member, Node}}, Roster#roster{members = Rest, ids = without(Id, Node, Ids)});
        error -> Roster
    end.

without(Id, Node, Ids) ->
    case Ids of
        #{Id := Node} -> maps:remove(Id, Ids);
        #{} -> Ids
    end.

-spec lookup(node(), roster()) -> member() | none.
lookup(Node, #roster{members = Members}) -> maps:get(Node, Members, none).

-spec members(roster()) -> [member()].
members(#roster{members = Members}) -> maps:values(Members).

-spec registered(roster()) -> [member()].
registered(Roster) -> [Member || Member <- members(Roster), is_registered(Member)].

-spec connected(roster()) -> [node()].
connected(Roster) -> [Node || #{node := Node, away_since := none} <- registered(Roster)].

-spec is_registered(member() | none) -> boolean().
is_registered(#{standing := Standing}) -> Standing =/= heard andalso Standing =/= stopped;
is_registered(none) -> false.

%% @doc Another registered node that bears this number.
-spec same(node(), id(), roster()) -> node() | none.
same(Node, Id, #roster{ids = Ids}) ->
    case Ids of
        #{Id := Other} when Other =/= Node -> Other;
        #{} -> none
    end.

%% @doc The latest run that is known of a node, also of one that left; 0 of one that isn't known.
-spec incarnation(node(), roster()) -> non_neg_integer().
incarnation(Node, #roster{members = Members, left = Left}) ->
    case {Members, Left} of
        {#{Node := #{incarnation := Incarnation}}, _} -> Incarnation;
        {_, #{Node := {Incarnation, _}}} -> Incarnation;
        _ -> 0
    end.

%% @doc What a hello says of other nodes. Members are named with how long they have been away: what all know only from each other
%% is to be forgotten all the same.
-spec told(ms(), roster()) -> #{members := [{node(), AwayMs :: non_neg_integer()}], left := [{node(), non_neg_integer()}],
                                stopped := [{node(), non_neg_integer()}]}.
told(Now, #roster{left = Left} = Roster) ->
    #{members => [{Node, away_ms(Since, Now)} || #{node := Node, away_since := Since} <- registered(Roster)],
      left => [{Node, Incarnation} || {Node, {Incarnation, _}} <- maps:to_list(Left)],
      stopped => [{Node, Incarnation} || #{node := Node, standing := stopped, incarnation := Incarnation} <- members(Roster)]}.

away_ms(none, _Now) -> 0;
away_ms(Since, Now) -> max(0, Now - Since).

%% @doc Whether a name that is only heard of may be added.
-spec has_room(roster()) -> boolean().
has_room(#roster{members = Members, left = Left}) -> map_size(Members) + map_size(Left) < ?MAX_NAMES.

-spec hearsay(roster()) -> weir_hearsay:hearsay().
hearsay(#roster{hearsay = Hearsay}) -> Hearsay.

-spec hearsay(weir_hearsay:hearsay(), roster()) -> roster().
hearsay(Hearsay, Roster) -> Roster#roster{hearsay = Hearsay}.

%% ---- those that left ----

-spec remember_left(node(), non_neg_integer(), ms(), roster()) -> roster().
remember_left(Node, Incarnation, Now, #roster{left = Left} = Roster) ->
    Known = max(Incarnation, incarnation(Node, Roster)),
    do({put, [{{left, Node}, Known, Now}]}, Roster#roster{left = Left#{Node => {Known, Now}}}).

-spec has_left(node(), roster()) -> boolean().
has_left(Node, #roster{left = Left}) -> is_map_key(Node, Left).

%% @doc Of one node, as it is there again; or of all that are too old, and, if they are too many, the earliest.
-spec forget_left(node() | {before, ms()}, roster()) -> roster().
forget_left({before, Now}, #roster{left = Left} = Roster) ->
    All = lists:sort([{At, Node} || {Node, {_, At}} <- maps:to_list(Left)]),
    Old = [Node || {At, Node} <- All, Now - At > ?KEEP_LEFT_MS],
    Few = [Node || {_, Node} <- lists:sublist(All, max(0, length(All) - ?MAX_LEFT))],
    lists:foldl(fun stays/2, Roster, lists:usort(Old ++ Few));
forget_left(Node, Roster) ->
    stays(Node, Roster).

stays(Node, #roster{left = Left} = Roster) when is_map_key(Node, Left) ->
    do({delete, {left, Node}}, Roster#roster{left = maps:remove(Node, Left)});
stays(_Node, Roster) ->
    Roster.

%% ---- those that are refused ----

-spec refuse(node(), weir_hello:reason(), roster()) -> roster().
refuse(Node, Reason, #roster{refused = Refused} = Roster) ->
    case Refused of
        #{Node := Reason} -> Roster;
        #{} -> do({put, [{{refused, Node}, Reason}]}, Roster#roster{refused = Refused#{Node => Reason}})
    end.

-spec pardon(node(), roster()) -> roster().
pardon(Node, #roster{refused = Refused} = Roster) when is_map_key(Node, Refused) ->
    do({delete, {refused, Node}}, Roster#roster{refused = maps:remove(Node, Refused)});
pardon(_Node, Roster) ->
    Roster.

-spec refused(roster()) -> [node()].
refused(#roster{refused = Refused}) -> maps:keys(Refused).

-spec refused(node(), roster()) -> weir_hello:reason() | none.
refused(Node, #roster{refused = Refused}) -> maps:get(Node, Refused, none).
