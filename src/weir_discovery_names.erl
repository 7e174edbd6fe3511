%% @private
%% @doc Names of nodes that come from outside: which of them are names, and which become atoms.
%%
%% A name is `Head@Host': the head has letters, digits, `_' and `-', the host is a host name or an IP address as {@link
%% inet:ntoa/1} prints it (`weir@10.0.0.1', `weir@2001:db8::1'), and all of it at most 255 bytes. What is none is counted, never
%% interned.
%%
%% Atoms are never freed, so there are two limits: on the names at a time, and on the atoms that names have made since the VM
%% started. Names that are atoms already cost nothing. The second count outlives every process and every restart of weir.
-module(weir_discovery_names).

-export([parse/1, naming/0, sift/3, atoms_made/0]).

-export_type([naming/0, refusal/0, refused/0]).

%% What this node can connect to: it must have a name itself, and hosts must be written as in that name.
-type naming() :: not_alive | #{domain := shortnames | longnames, ipv6 := boolean()}.
-type refusal() :: malformed | unusable | too_many_nodes | too_many_atoms.
%% How many were refused of each kind, and one of them.
-type refused() :: #{refusal() => {Count :: pos_integer(), Example :: binary()}}.

-define(MAX_NAME_BYTES, 255).
-define(MAX_NODES, 1024).
-define(MAX_ATOMS, 10000).
%% Of a refused name this much is shown.
-define(MAX_EXAMPLE_CHARS, 60).

%% @doc A name as a binary, or not one.
-spec parse(term()) -> {ok, binary()} | error.
parse(Name) when is_atom(Name) ->
    parse(atom_to_binary(Name));
parse(Name) when is_list(Name) ->
    try list_to_binary(Name) of
        Binary -> parse(Binary)
    catch
        error:badarg -> error
    end;
parse(Name) when is_binary(Name), byte_size(Name) =< ?MAX_NAME_BYTES ->
    case binary:split(Name, <<"@">>) of
        [Head, Host] ->
            Good = matches(Head, "^[A-Za-z0-9_-]+$")
                andalso (matches(Host, "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$") orelse is_ipv6(Host)),
            case Good of
                true -> {ok, Name};
                false -> error
            end;
        [_] ->
            error
    end;
parse(_) ->
    error.

%% ($ alone would let a line end pass.)
matches(Text, Regexp) ->
    re:run(Text, Regexp, [dollar_endonly, {capture, none}]) =:= match.

%% (A zone, as in fe80::1%eth0, means something on one machine only.)
is_ipv6(Host) ->
    matches(Host, "^[0-9a-f:.]+$") andalso element(1, inet:parse_ipv6strict_address(binary_to_list(Host))) =:= ok.

%% @doc How this node is named.
-spec naming() -> naming().
naming() ->
    case net_kernel:get_state() of
        #{started := no} -> not_alive;
        #{name_domain := Domain} -> #{domain => Domain, ipv6 => ipv6()}
    end.

ipv6() ->
    case init:get_argument(proto_dist) of
        {ok, [["inet6" ++ _ | _] | _]} -> true;
        _ -> false
    end.

%% @doc The nodes that may be connected to, among names that come from outside. Where there are more than fit, those of `Keep'
%% go before others: a flood of names does not push out nodes that are known.
-spec sift([term()], sets:set(binary()), naming()) -> {[node()], refused()}.
sift(Names, Keep, Naming) ->
    {Good, Refused} = well_formed(Names, #{}, #{}),
    {Kept, New} = lists:partition(fun(Name) -> sets:is_element(Name, Keep) end, lists:sort(maps:keys(Good))),
    {Usable, Others} = lists:partition(fun(Name) -> usable(Name, Naming) end, Kept ++ New),
    {Fitting, Left} = lists:split(min(length(Usable), ?MAX_NODES), Usable),
    interned(Fitting, [], refuse(too_many_nodes, Left, refuse(unusable, Others, Refused))).

well_formed([], Good, Refused) ->
    {Good, Refused};
well_formed([Given | Rest], Good, Refused) ->
    case parse(Given) of
        {ok, Name} -> well_formed(Rest, Good#{Name => true}, Refused);
        error -> well_formed(Rest, Good, refuse(malformed, [Given], Refused))
    end.

%% The kernel would log an error at each attempt, and not connect.
usable(Name, #{domain := Domain, ipv6 := Ipv6}) ->
    [_, Host] = binary:split(Name, <<"@">>),
    case {binary:match(Host, <<":">>), binary:match(Host, <<".">>)} of
        {{_, _}, _} -> Ipv6;
        {nomatch, nomatch} -> Domain =:= shortnames;
        {nomatch, _} -> Domain =:= longnames
    end;
usable(_Name, not_alive) ->
    true.

interned([], Nodes, Refused) ->
    {lists:reverse(Nodes), Refused};
interned([Name | Rest], Nodes, Refused) ->
    case to_atom(Name) of
        {ok, Node} -> interned(Rest, [Node | Nodes], Refused);
        error -> interned(Rest, Nodes, refuse(too_many_atoms, [Name], Refused))
    end.

to_atom(Name) ->
    try {ok, binary_to_existing_atom(Name)}
    catch error:badarg -> make_atom(Name)
    end.

make_atom(Name) ->
    Made = made(),
    case counters:get(Made, 1) < ?MAX_ATOMS of
        true ->
            ok = counters:add(Made, 1, 1),
            {ok, binary_to_atom(Name)};
        false ->
            error
    end.

%% @doc How many atoms names from outside have made since the VM started.
-spec atoms_made() -> non_neg_integer().
atoms_made() ->
    counters:get(made(), 1).

%% (Written once and never replaced, so no collection follows.)
made() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            Made = counters:new(1, []),
            ok = persistent_term:put(?MODULE, Made),
            Made;
        Made ->
            Made
    end.

refuse(_Why, [], Refused) ->
    Refused;
refuse(Why, [Example | _] = Names, Refused) ->
    {Count, First} = maps:get(Why, Refused, {0, example(Example)}),
    Refused#{Why => {Count + length(Names), First}}.

example(Name) ->
    unicode:characters_to_binary(io_lib:format("~0tP", [Name, ?MAX_EXAMPLE_CHARS], [{chars_limit, ?MAX_EXAMPLE_CHARS}])).
