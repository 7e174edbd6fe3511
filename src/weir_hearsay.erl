%% @private
%% @doc Nodes that this one knows of only by what members say: which of them count as registered. Pure.
%%
%% How many nodes are registered decides whether a side of a partition goes on (`closed') or how much it admits (`share'), so both
%% errors cost. Too few: a node that starts on one side of a partition takes that side for the whole, and both sides go on. Too
%% many: a name that no node bears makes the larger side deny. Considered were
%%
%% <ul>
%% <li>to count nobody who hasn't said hello: safe against made-up names only. Each node that restarts on one side forgets the
%%     other side, which it can't meet: the first error;</li>
%% <li>to count whom any member names: one member that is wrong, by a fault or a stale list, makes the second error everywhere;</li>
%% <li>to count whom at least half of the connected members name: chosen.</li>
%% </ul>
%%
%% All members that were together before the cut name the same nodes, as does who has counted a node for their sake; so a node that
%% restarts on a side of a partition counts as many as its side does, also when it finds one single member there, and also when all
%% members of the side restart in turn. A name that one of three or more members has made up isn't counted. Only members that are
%% ready are asked: one that is starting knows nobody yet, and its silence says nothing.
%%
%% What counts once goes on counting until it leaves, stops, or was out of reach for `forget_after': members that disagree later, as
%% those do that met nobody but this one, take no node away. All that are named are looked for, whether they count or not.
-module(weir_hearsay).

-export([new/0, said/3, silent/2, forget/2, confirmed/2]).

-export_type([hearsay/0]).

%% Of each node, the members that name it.
-opaque hearsay() :: #{node() => #{node() => true}}.

-spec new() -> hearsay().
new() -> #{}.

%% @doc A member names these nodes now, and none of the others any more.
-spec said(Member :: node(), Named :: [node()], hearsay()) -> hearsay().
said(Member, Named, Hearsay) ->
    lists:foldl(fun(Node, All) -> All#{Node => (maps:get(Node, All, #{}))#{Member => true}} end, silent(Member, Hearsay), Named).

%% @doc A member has gone: it is asked again when it is back.
-spec silent(Member :: node(), hearsay()) -> hearsay().
silent(Member, Hearsay) ->
    maps:filter(fun(_, By) -> map_size(By) > 0 end, maps:map(fun(_, By) -> maps:remove(Member, By) end, Hearsay)).

%% @doc A node that is known by itself, or by nobody any more.
-spec forget(node(), hearsay()) -> hearsay().
forget(Node, Hearsay) -> maps:remove(Node, Hearsay).

%% @doc Whom at least half of these members name.
-spec confirmed([Member :: node()], hearsay()) -> [node()].
confirmed([], _Hearsay) -> [];
confirmed(Members, Hearsay) ->
    [Node || {Node, By} <- maps:to_list(Hearsay), 2 * map_size(maps:with(Members, By)) >= length(Members)].
