%% The port mapper of a node that `weir-lab run --real' started: another node `labI@127.0.0.1' is found at the port which the
%% command line names for it, that of the lab's proxy for this pair. Where this node listens, it keeps for weir_lab_node to tell.
-module(weir_lab_epmd).

-export([start_link/0, register_node/2, register_node/3, address_please/3, port_please/2, port_please/3, names/1,
         listen_port_please/2, listen_port/0]).

%% The version of the distribution's handshake; as erl_epmd has it from OTP 25 on.
-define(VERSION, 6).

-spec start_link() -> ignore.
start_link() ->
    ignore.

-spec register_node(atom(), inet:port_number()) -> {ok, pos_integer()}.
register_node(Name, Port) ->
    register_node(Name, Port, inet).

%% (Each start of a name wants a creation of its own.)
-spec register_node(atom(), inet:port_number(), inet | inet6) -> {ok, pos_integer()}.
register_node(_Name, Port, _Family) ->
    ok = persistent_term:put(?MODULE, Port),
    {ok, 4 + erlang:system_time(millisecond) rem 1000000000}.

-spec listen_port() -> inet:port_number().
listen_port() ->
    persistent_term:get(?MODULE).

-spec listen_port_please(atom(), term()) -> {ok, 0}.
listen_port_please(_Name, _Host) ->
    {ok, 0}.

-spec address_please(string(), term(), term()) -> {ok, inet:ip_address(), inet:port_number(), pos_integer()} | {error, nxdomain}.
address_please(Name, _Host, _Family) ->
    case port_please(Name, none) of
        {port, Port, Version} -> {ok, {127, 0, 0, 1}, Port, Version};
        noport -> {error, nxdomain}
    end.

-spec port_please(atom() | string(), term()) -> {port, inet:port_number(), pos_integer()} | noport.
port_please(Name, _Host) ->
    {ok, Ports} = init:get_argument(weir_lab_ports),
    case string:prefix(lists:flatten(io_lib:format("~s", [Name])), "lab") of
        nomatch -> noport;
        Number -> {port, list_to_integer(lists:nth(list_to_integer(Number) + 1, lists:append(Ports))), ?VERSION}
    end.

-spec port_please(atom() | string(), term(), timeout()) -> {port, inet:port_number(), pos_integer()} | noport.
port_please(Name, Host, _Timeout) ->
    port_please(Name, Host).

-spec names(term()) -> {error, address}.
names(_Host) ->
    {error, address}.
