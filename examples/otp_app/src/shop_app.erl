%% Starts the shop. weir is started before it, because shop.app.src names it among the applications.
-module(shop_app).
-behaviour(application).
-export([start/2, stop/1]).

-spec start(application:start_type(), term()) -> {ok, pid()} | {error, term()}.
start(_Type, _Args) ->
    ok = weir:put_limiter(login, #{rate => {5, minute}, scope => exact}),
    case shop_sup:start_link() of
        {ok, Pid} -> {ok, Pid};
        ignore -> {error, ignored};
        {error, Reason} -> {error, Reason}
    end.

-spec stop(term()) -> ok.
stop(_State) ->
    ok.
