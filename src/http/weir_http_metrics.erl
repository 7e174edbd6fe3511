%% @doc `GET /metrics': weir's counters in Prometheus' text format.
%%
%% A collector in a registry of its own reads `weir_metrics:metrics/0' when it is asked. Requests pay nothing for it, and
%% what else the node registers with the prometheus library is not shown here.
-module(weir_http_metrics).

-behaviour(cowboy_handler).
-behaviour(prometheus_collector).

-export([init/2, register/0, collect_mf/2, deregister_cleanup/1]).

-define(REGISTRY, weir).

%% @doc Enters the collector into its registry; doing so again changes nothing.
-spec register() -> ok.
register() ->
    prometheus_registry:register_collector(?REGISTRY, ?MODULE).

%% @private
-spec init(cowboy_req:req(), State) -> {ok, cowboy_req:req(), State}.
init(Req, State) ->
    weir_http_request:answer(Req, State, [<<"GET">>, <<"HEAD">>], fun metrics/1).

metrics(_Req) ->
    {200, #{<<"content-type">> => prometheus_text_format:content_type()}, prometheus_text_format:format(?REGISTRY)}.

%% @private
-spec collect_mf(prometheus_registry:registry(), prometheus_collector:collect_mf_callback()) -> ok.
collect_mf(_Registry, Callback) ->
    lists:foreach(
        fun({Name, Kind, Help, Labels, Series}) ->
            Metrics = [{lists:zip(Labels, [label(Value) || Value <- Values]), Number} || {Values, Number} <- Series],
            _ = Callback(prometheus_model_helpers:create_mf(Name, Help, Kind, Metrics))
        end, weir_metrics:metrics()).

%% @private
-spec deregister_cleanup(prometheus_registry:registry()) -> ok.
deregister_cleanup(_Registry) -> ok.

%% The format is UTF-8, and one bad byte makes Prometheus refuse the whole page.
label(Value) when is_binary(Value) ->
    case unicode:characters_to_binary(Value) of
        Value -> Value;
        _ -> unicode:characters_to_binary(binary_to_list(Value))
    end;
label(Value) when is_atom(Value) ->
    atom_to_binary(Value).
