%% @private
%% @doc Who counts as a member, and from when on no more: what a node makes of what others say of themselves and of each other. Pure.
%%
%% It works on a roster, and notes there what is to be done: {registered, Node}, {unregistered, Node}, {joined, Node},
%% {forget_traffic, Node} and {log, Level, Report}, beside the rows. What they mean is said in weir_members_core.
-module(weir_standing).

-export([joined/4, heard_of/5, confirm/2, refused/4, same/4]).
-export([farewell/5, has_gone/4, gone_for_good/4, remove/2, went_away/3, missed/2, silent/2, check/3]).

-export_type([seen/0]).

-type roster() :: weir_roster_core:roster().
%% `clock' is the system's time in milliseconds, `now' is monotonic; `up' are the nodes that there is a connection to.
-type seen() :: #{now := weir_roster_core:ms(), clock := integer(), node := node(), up := [node()]}.
-type incarnation() :: non_neg_integer().

%% For so long a node that stopped in order goes on counting: it may only be started again, and its last records are still handed on.
%% Two members see its end at the same time, but for less.
-define(STOPPED_MS, 5000).
-define(MAX_INCARNATION, (1 bsl 62)).

%% ---- who is there ----

%% @doc The node said hello, and is a member.
-spec joined(node(), incarnation(), weir_hello:terms(), roster()) -> roster().
joined(Node, Incarnation, Terms, Roster) ->
    Member = #{node => Node, id => weir_roster_core:id(Node), standing => met, away_since => none, terms => Terms,
               incarnation => max(weir_roster_core:incarnation(Node, Roster), Incarnation)},
    Known = weir_roster_core:is_registered(weir_roster_core:lookup(Node, Roster)),
    Joined = weir_roster_core:forget_left(Node, weir_roster_core:put(Member, log(not Known, notice, #{what => member_joined, node => Node}, Roster))),
    %% (Said with each hello: what the other heard before it knew this node as a member, it didn't take.)
    Told = weir_roster_core:do({joined, Node}, weir_roster_core:do({registered, Node}, Joined)),
    hearsay(fun(Hearsay) -> weir_hearsay:forget(Node, Hearsay) end, Told).

%% @doc A node can't be a member, or no more. It stays registered, as it may go on limiting where this node doesn't see it: it is
%% away, and its frames are not taken.
-spec refused(node(), weir_hello:reason(), seen(), roster()) -> roster().
refused(Node, Reason, Seen, Roster) ->
    News = weir_roster_core:refused(Node, Roster) =/= Reason,
    Report = #{what => member_refused, node => Node, why => weir_hello:text(Reason)},
    Refused = weir_roster_core:refuse(Node, Reason, log(News, error, Report, Roster)),
    case weir_roster_core:lookup(Node, Refused) of
        #{terms := none} -> went_away(Node, Seen, Refused);
        #{} = Member -> went_away(Node, Seen, weir_roster_core:do({registered, Node}, weir_roster_core:put(Member#{terms := none}, Refused)));
        none -> Refused
    end.

%% @doc Another node of the same number, this one among them.
-spec same(node(), weir_roster_core:id(), seen(), roster()) -> node() | none.
same(Node, Id, #{node := Self}, Roster) ->
    case weir_roster_core:id(Self) of
        Id -> Self;
        _ -> weir_roster_core:same(Node, Id, Roster)
    end.

%% ---- who is named by others ----

%% @doc A member names these. They are known to it, and perhaps out of reach: each is looked for, and counts if enough members name it.
-spec heard_of(Member :: node(), Named :: list(), ForgetAfter :: pos_integer(), seen(), roster()) -> roster().
heard_of(Member, Named, Most, #{node := Self, now := Now} = Seen, Roster) ->
    {News, Heard} = lists:foldl(fun({Node, AwayMs}, Known) when is_atom(Node), Node =/= Self, is_integer(AwayMs), AwayMs >= 0, AwayMs < Most ->
                                        named(Node, Now - AwayMs, Seen, Known);
                                   (_, Known) -> Known
                                end, {[], Roster}, Named),
    hearsay(fun(Hearsay) -> weir_hearsay:said(Member, News, Hearsay) end, Heard).

named(Node, Since, Seen, {News, Roster}) ->
    case looks_for(weir_roster_core:lookup(Node, Roster), Node, Since, Seen, Roster) of
        none -> {News, Roster};
        Member -> {[Node | News], weir_roster_core:put(Member, Roster)}
    end.

%% What is said of a node, if it is news.
looks_for(#{standing := Standing, away_since := Before} = Member, _, Since, _, _) when Standing =:= heard; Standing =:= confirmed ->
    Member#{away_since := max(Before, Since)};
looks_for(#{standing := stopped, away_since := Stopped} = Member, _, Since, _, _) when Since > Stopped + ?STOPPED_MS ->
    %% It was met after it stopped: it is back.
    Member#{standing := heard, away_since := Since};
looks_for(#{}, _, _, _, _) ->
    none;
looks_for(none, Node, Since, Seen, Roster) ->
    Id = weir_roster_core:id(Node),
    case weir_roster_core:has_room(Roster) andalso same(Node, Id, Seen, Roster) =:= none andalso not weir_roster_core:has_left(Node, Roster) of
        true -> #{node => Node, id => Id, standing => heard, incarnation => 0, away_since => Since, terms => none};
        false -> none
    end.

%% @doc Counts those whom enough members name.
-spec confirm(seen(), roster()) -> roster().
confirm(Seen, Roster) ->
    Ready = [Node || #{node := Node, away_since := none, incarnation := Run} <- weir_roster_core:registered(Roster), Run =/= 0],
    lists:foldl(fun(Node, Known) -> count_too(weir_roster_core:lookup(Node, Known), Seen, Known) end, Roster,
                weir_hearsay:confirmed(Ready, weir_roster_core:hearsay(Roster))).

%% (Said again of one that counts: the machine forgets by its own clock.)
count_too(#{node := Node, id := Id, standing := Standing} = Member, Seen, Roster) when Standing =:= heard; Standing =:= confirmed ->
    case same(Node, Id, Seen, Roster) of
        none -> weir_roster_core:do({registered, Node}, weir_roster_core:put(Member#{standing := confirmed}, Roster));
        _ -> Roster
    end;
count_too(_, _Seen, Roster) ->
    Roster.

%% ---- who goes ----

%% @doc The node itself says that it leaves, or stops in order. (Not one of a run before, that was overtaken.)
-spec farewell(bye | stop, node(), incarnation(), seen(), roster()) -> roster().
farewell(How, Node, Incarnation, #{now := Now} = Seen, Roster) ->
    case {How, weir_roster_core:lookup(Node, Roster)} of
        {bye, #{incarnation := Known}} when Incarnation >= Known ->
            gone_for_good(Node, Incarnation, Seen, log(true, notice, #{what => member_left, node => Node}, Roster));
        {stop, #{incarnation := Known} = Member} when Incarnation >= Known ->
            Ended = Member#{incarnation := Incarnation, away_since := Now},
            Logged = log(true, notice, #{what => member_stopped, node => Node}, Roster),
            %% (One that wasn't registered doesn't become so by its end.)
            case weir_roster_core:is_registered(Member) of
                true -> weir_roster_core:put(Ended#{standing := stopping}, Logged);
                false -> weir_roster_core:put(Ended#{standing := stopped}, Logged)
            end;
        _ ->
            Roster
    end.

%% @doc Another member has heard it leave or stop, and not this node.
-spec has_gone(bye | stop, {node(), incarnation()} | term(), seen(), roster()) -> roster().
has_gone(How, {Node, Incarnation}, #{node := Self} = Seen, Roster)
  when is_atom(Node), Node =/= Self, is_integer(Incarnation), Incarnation < ?MAX_INCARNATION ->
    case weir_roster_core:lookup(Node, Roster) of
        #{incarnation := Known, away_since := Since} when Known =< Incarnation, Since =/= none, How =:= bye ->
            gone_for_good(Node, Incarnation, Seen, Roster);
        #{incarnation := Known, away_since := Since, standing := Standing} = Member
          when Known =< Incarnation, Since =/= none, How =:= stop, Standing =/= stopped ->
            stopped(Member#{incarnation := Incarnation}, Roster);
        _ ->
            Roster
    end;
has_gone(_How, _, _Seen, Roster) ->
    Roster.

%% One that stopped in order, some seconds ago, sent what it had admitted, and admits nothing: no side of a partition has to reckon
%% with it. It is looked for, as it may be back in a moment, and may not know where the others are.
stopped(#{node := Node} = Member, Roster) ->
    weir_roster_core:do({unregistered, Node}, weir_roster_core:put(Member#{standing := stopped, terms := none}, Roster)).

%% @doc It left, or an operator says so.
-spec gone_for_good(node(), incarnation(), seen(), roster()) -> roster().
gone_for_good(Node, Incarnation, #{now := Now}, Roster) ->
    remove(Node, weir_roster_core:remember_left(Node, Incarnation, Now, Roster)).

-spec remove(node(), roster()) -> roster().
remove(Node, Roster) ->
    Forgotten = hearsay(fun(Hearsay) -> weir_hearsay:forget(Node, Hearsay) end, Roster),
    case weir_roster_core:lookup(Node, Roster) of
        none -> Forgotten;
        #{} -> weir_roster_core:do({unregistered, Node}, weir_roster_core:do({forget_traffic, Node}, weir_roster_core:drop(Node, Forgotten)))
    end.

%% @doc It can't be reached, or weir has ended there.
-spec went_away(node(), seen(), roster()) -> roster().
went_away(Node, #{now := Now}, Roster) ->
    Away = case weir_roster_core:lookup(Node, Roster) of
               #{away_since := none} = Member -> weir_roster_core:put(Member#{away_since := Now}, Roster);
               _ -> Roster
           end,
    hearsay(fun(Hearsay) -> weir_hearsay:silent(Node, Hearsay) end, Away).

%% @doc Those whose connection went while nobody looked.
-spec missed(seen(), roster()) -> roster().
missed(Seen, Roster) ->
    Up = up(Seen),
    lists:foldl(fun(Node, Known) -> went_away(Node, Seen, Known) end, Roster,
                [Node || Node <- weir_roster_core:connected(Roster), not is_map_key(Node, Up)]).

%% @doc Members that are away though there is a connection: weir has ended there, or one of the two missed the other's hello.
-spec silent(seen(), roster()) -> [node()].
silent(Seen, Roster) ->
    Up = up(Seen),
    [Node || #{node := Node, away_since := Since} <- weir_roster_core:registered(Roster), Since =/= none, is_map_key(Node, Up)].

%% @doc What time brings. Asked once a second.
-spec check(ForgetAfter :: pos_integer(), seen(), roster()) -> roster().
check(Most, #{now := Now} = Seen, Roster0) ->
    Up = up(Seen),
    Roster = lists:foldl(fun weir_roster_core:pardon/2, weir_roster_core:forget_left({before, Now}, Roster0),
                         [Node || Node <- weir_roster_core:refused(Roster0), not is_map_key(Node, Up)]),
    Members = weir_roster_core:members(Roster),
    Over = [Node || #{node := Node, away_since := Since} <- Members, Since =/= none, Now - Since > Most],
    Stopped = [Member || #{standing := stopping, away_since := Since} = Member <- Members, Now - Since > ?STOPPED_MS],
    lists:foldl(fun(Node, Known) -> remove(Node, log(true, notice, #{what => member_forgotten, node => Node}, Known)) end,
                lists:foldl(fun stopped/2, Roster, Stopped), Over).

%% ---- helpers ----

up(#{up := Up}) -> maps:from_list([{Node, up} || Node <- Up]).

hearsay(Change, Roster) -> weir_roster_core:hearsay(Change(weir_roster_core:hearsay(Roster)), Roster).

log(false, _Level, _Report, Roster) -> Roster;
log(true, Level, Report, Roster) -> weir_roster_core:do({log, Level, Report}, Roster).
