%% @private
%% @doc Takes the next secret into use, on all members: asks them all, in two rounds, from the caller's process.
-module(weir_rotation).

-export([rotate/1]).

%% How long the others have to answer.
-define(ROTATE_MS, 5000).

%% @doc The message of an error is a sentence.
%%
%% Nothing changes unless all are there and have the secret. Then this node is the first: whoever doesn't hear of it now, learns it by
%% its next hello.
-spec rotate(Force :: boolean()) -> ok | {error, Message :: binary()}.
rotate(Force) ->
    case {weir_secret:next(), weir_roster:away()} of
        {{ok, Id}, []} -> switch_all(Id, Force, ask([node() | weir_roster:connected()], rotation(ready, Id, Force)));
        {{ok, _}, Away} -> {error, weir_error:sentence("nothing was changed: out of reach is ~ts", [names(Away)])};
        {{error, Message}, _} -> {error, Message}
    end.

switch_all(Id, Force, []) ->
    Others = weir_roster:connected(),
    case ask([node()], rotation(switch, Id, Force)) of
        [] ->
            case ask(Others, rotation(switch, Id, Force)) of
                [] -> ok;
                Wrong ->
                    {error, weir_error:sentence("keys are hashed under the next secret from now on, but not everywhere. ~ts", [sentences(Wrong)])}
            end;
        Wrong ->
            {error, weir_error:sentence("nothing was changed. ~ts", [sentences(Wrong)])}
    end;
switch_all(_Id, _Force, Wrong) ->
    {error, weir_error:sentence("nothing was changed. ~ts", [sentences(Wrong)])}.

rotation(What, Id, false) -> {rotation, 1, What, Id};
rotation(What, Id, true) -> {rotation, 1, What, Id, force}.

%% What is wrong on which node; what speaks no such protocol answers `unknown'.
ask(Nodes, Request) ->
    Here = [{node(), gen_server:call(weir_members, Request, ?ROTATE_MS)} || lists:member(node(), Nodes)],
    {Replies, Silent} = gen_server:multi_call(Nodes -- [node()], weir_members, Request, ?ROTATE_MS),
    [{Node, Why} || {Node, {error, Why}} <- Here ++ Replies, is_binary(Why)]
        ++ [{Node, <<"its version of weir knows of no rotation">>} || {Node, unknown} <- Replies]
        ++ [{Node, <<"it doesn't answer">>} || Node <- Silent].

sentences(Wrong) ->
    lists:join("; ", [[atom_to_list(Node), ": ", Why] || {Node, Why} <- Wrong]).

names(Nodes) ->
    lists:join(", ", [atom_to_list(Node) || Node <- Nodes]).
