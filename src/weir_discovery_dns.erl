%% @doc Discovery by DNS: `{dns, #{name => "weir.default.svc.cluster.local"}}', a Kubernetes headless service for instance.
%%
%% - `name': the whole name; search domains are not tried.
%% - `type': `a' (default) and `aaaa' make `weir@10.0.0.1' and `weir@2001:db8::1' of the addresses, `srv' makes `weir@host' of
%%   the targets, in lower case. The port of an SRV record is not looked at: epmd knows the nodes' ports.
%% - `prefix' (default "weir"): the part before the `@'.
%% - `nameservers' (default: the system's): a list of addresses or `{Address, Port}'.
%% - `timeout_ms' (2000) an attempt, of which there are two for each name server.
%% - `min_interval_ms' (1000), `max_interval_ms' (30000): records are asked for again when their time to live is over, within
%%   these bounds.
%%
%% An answer without records finds nobody. A name that doesn't exist, and a server that fails, are errors: the nodes found
%% before stay.
-module(weir_discovery_dns).

-behaviour(weir_discovery).

-export([init/1, lookup/1]).

-type state() :: #{name := string(), type := a | aaaa | srv, prefix := string(), options := list(),
                   min_ms := pos_integer(), max_ms := pos_integer()}.

-define(ATTEMPTS, 2).
-define(DNS_PORT, 53).

%% @private
-spec init(map()) -> {ok, state()} | {error, binary()}.
init(Given) ->
    case weir_discovery_options:parse(dns, Given, options()) of
        {ok, #{min_interval_ms := Min, max_interval_ms := Max}} when Min > Max ->
            {error, weir_error:sentence("discovery by dns: min_interval_ms is ~b, more than max_interval_ms, ~b",
                                                    [Min, Max])};
        {ok, #{name := Name, type := Type, prefix := Prefix, nameservers := Servers, timeout_ms := Timeout,
               min_interval_ms := Min, max_interval_ms := Max}} ->
            Options = [{nameservers, Servers} || Servers =/= system] ++ [{timeout, Timeout}, {retry, ?ATTEMPTS}],
            {ok, #{name => Name, type => Type, prefix => Prefix, options => Options, min_ms => Min, max_ms => Max}};
        {error, _} = Error ->
            Error
    end.

options() ->
    Ms = fun weir_discovery_options:milliseconds/1,
    [{name, required, fun name/1, "a DNS name such as \"weir.default.svc.cluster.local\""},
     {type, {default, a}, fun type/1, "a, aaaa or srv"},
     {prefix, {default, "weir"}, fun prefix/1, "the part of the nodes' names before the @, such as \"weir\""},
     {nameservers, {default, system}, fun servers/1, "a list of addresses, or of {Address, Port}, such as [{\"10.0.0.10\", 53}]"},
     {timeout_ms, {default, 2000}, Ms, "milliseconds from 1 to 3600000"},
     {min_interval_ms, {default, 1000}, Ms, "milliseconds from 1 to 3600000"},
     {max_interval_ms, {default, 30000}, Ms, "milliseconds from 1 to 3600000"}].

name(Given) ->
    case weir_discovery_options:text(Given) of
        {ok, Name} when length(Name) =< 255 ->
            case lists:all(fun(C) -> C > $\s andalso C < 127 end, Name) of
                true -> {ok, string:trim(Name, trailing, ".")};
                false -> error
            end;
        _ ->
            error
    end.

type(Type) when Type =:= a; Type =:= aaaa; Type =:= srv -> {ok, Type};
type(_) -> error.

prefix(Given) ->
    case weir_discovery_options:text(Given) of
        {ok, Prefix} ->
            case weir_discovery_names:parse(Prefix ++ "@host") of
                {ok, _} -> {ok, Prefix};
                error -> error
            end;
        error ->
            error
    end.

servers(Given) when length(Given) >= 1 ->  % a proper list
    Parsed = [server(Server) || Server <- Given],
    case lists:member(error, Parsed) of
        true -> error;
        false -> {ok, Parsed}
    end;
servers(_) ->
    error.

server({Address, Port}) when is_integer(Port), Port >= 1, Port =< 65535 ->
    case address(Address) of
        {ok, Ip} -> {Ip, Port};
        error -> error
    end;
server(Address) ->
    server({Address, ?DNS_PORT}).

address(Ip) when is_tuple(Ip) ->
    case inet:is_ip_address(Ip) of
        true -> {ok, Ip};
        false -> error
    end;
address(Given) ->
    case weir_discovery_options:text(Given) of
        {ok, Text} ->
            case inet:parse_strict_address(Text) of
                {ok, Ip} -> {ok, Ip};
                {error, _} -> error
            end;
        error ->
            error
    end.

%% @private
-spec lookup(state()) -> {ok, [string()], pos_integer(), state()} | {error, binary(), backoff, state()}.
lookup(#{name := Name, type := Type, prefix := Prefix, options := Options, min_ms := Min, max_ms := Max} = State) ->
    case inet_res:resolve(Name, in, Type, Options) of
        {ok, Message} ->
            Records = inet_dns:msg(Message, anlist),
            Names = [Prefix ++ "@" ++ host(Type, inet_dns:rr(R, data)) || R <- Records, inet_dns:rr(R, type) =:= Type],
            %% Aliases on the way there count too: the answer is as good as its shortest-lived part.
            Ttl = lists:min([Max | [inet_dns:rr(R, ttl) * 1000 || R <- Records]]),
            {ok, Names, max(Min, Ttl), State};
        {error, Reason} ->
            {error, explain(Reason, Name, Type), backoff, State}
    end.

host(srv, {_Priority, _Weight, _Port, Target}) -> string:lowercase(Target);
host(_, Ip) -> inet:ntoa(Ip).

%% (Some reasons come with the message that gave them.)
explain({Reason, _Message}, Name, Type) -> explain(Reason, Name, Type);
explain(nxdomain, Name, _Type) -> weir_error:sentence("the name ~ts does not exist (NXDOMAIN)", [Name]);
explain(servfail, Name, Type) -> weir_error:sentence("the name server failed (SERVFAIL) when asked for ~ts, ~s", [Name, Type]);
explain(refused, Name, Type) -> weir_error:sentence("the name server refuses to answer (REFUSED) for ~ts, ~s", [Name, Type]);
explain(timeout, Name, Type) -> weir_error:sentence("no name server answered in time when asked for ~ts, ~s", [Name, Type]);
explain(Reason, Name, Type) -> weir_error:sentence("~ts, ~s could not be asked for: ~0tP", [Name, Type, Reason, 12]).
