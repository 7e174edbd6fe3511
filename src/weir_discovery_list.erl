%% @doc Discovery by a list of nodes: `{list, #{nodes => ["weir@10.0.0.1", "weir@10.0.0.2"]}}'.
%%
%% Names are strings, binaries or atoms. The own one may be among them, so that all nodes can share a configuration.
-module(weir_discovery_list).

-behaviour(weir_discovery).

-export([init/1, lookup/1]).

%% @private
-spec init(map()) -> {ok, [binary()]} | {error, binary()}.
init(Given) ->
    case weir_discovery_options:parse(list, Given, [{nodes, required, fun names/1, "a list of names such as \"weir@10.0.0.1\""}]) of
        {ok, #{nodes := Names}} -> {ok, Names};
        {error, _} = Error -> Error
    end.

names(Given) when length(Given) >= 0 ->  % a proper list
    Parsed = [weir_discovery_names:parse(Name) || Name <- Given],
    case lists:member(error, Parsed) of
        true -> error;
        false -> {ok, [Name || {ok, Name} <- Parsed]}
    end;
names(_) ->
    error.

%% @private
-spec lookup([binary()]) -> {ok, [binary()], infinity, [binary()]}.
lookup(Names) ->
    {ok, Names, infinity, Names}.
