%% @doc A peer: fixed windows in ETS, one `update_counter' a request, as the ETS backends of the usual libraries are
%% written. Exact under concurrency within a window; lets up to twice the limit pass around a window's end. A denied
%% request is counted too.
%%
%% A row is {{Key, Window}, Count, ExpiresAt}; a cleaner that deletes expired rows would run every few minutes and is left
%% out of the measurements.
-module(peers_window).

-export([new/0, hit/4]).

-spec new() -> ets:table().
new() ->
    ets:new(?MODULE, [set, public, {read_concurrency, true}, {write_concurrency, true}, {decentralized_counters, true}]).

-spec hit(ets:table(), term(), ScaleMs :: pos_integer(), Limit :: pos_integer()) ->
          {allow, pos_integer()} | {deny, pos_integer()}.
hit(Table, Key, ScaleMs, Limit) ->
    Now = erlang:system_time(millisecond),
    Window = Now div ScaleMs,
    Row = {Key, Window},
    ExpiresAt = (Window + 1) * ScaleMs,
    case ets:update_counter(Table, Row, 1, {Row, 0, ExpiresAt}) of
        Count when Count =< Limit -> {allow, Count};
        _ -> {deny, ExpiresAt - Now}
    end.
