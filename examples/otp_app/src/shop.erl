%% The shop's front door:  `rebar3 shell`, then  shop:login({192, 0, 2, 1}).  six times.
-module(shop).
-export([login/1]).

-spec login(inet:ip_address()) -> welcome | {come_back_in_ms, pos_integer() | infinity}.
login(Ip) ->
    case weir:check(login, Ip) of
        {allow, _Remaining} -> welcome;
        {deny, Ms} -> {come_back_in_ms, Ms}
    end.
