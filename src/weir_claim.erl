%% @private
%% @doc Hits above this node's share, under `large_hits => claim': the other nodes are asked before they are admitted.
%%
%% One round trip through weir_replica, at most the limiter's `timeout'. When no answer comes in that time, and for what isn't
%% asked (a limiter in shadow), this node decides alone, as `large_hits => admit' does.
-module(weir_claim).

-export([check/4, decide/4]).

-spec check(weir_nif:limiter(), term(), pos_integer(), {weir_nif:limiter_number(), weir_nif:key_hash()}) -> weir_nif:verdict() | weir_nif:wrong().
check(Limiter, Key, Hits, Hashed) ->
    case ask(Limiter, Hits, Hashed) of
        unknown -> weir_table:check_here(Limiter, Key, Hits);
        true -> of_table(Limiter, Key, fun(#{remaining := Remaining}) -> Remaining end);
        false -> of_table(Limiter, Key, fun(Explained) -> minus(retry_ms(Explained, Hits)) end)
    end.

-spec decide(weir_nif:limiter(), term(), pos_integer(), {weir_nif:limiter_number(), weir_nif:key_hash()}) -> weir_nif:decision() | weir_nif:wrong().
decide(Limiter, Key, Hits, Hashed) ->
    case ask(Limiter, Hits, Hashed) of
        unknown -> weir_table:decide_here(Limiter, Key, Hits);
        true -> of_table(Limiter, Key, fun(Explained) -> (decision(Explained))#{allowed => true, retry_ms => 0} end);
        false ->
            of_table(Limiter, Key, fun(Explained) ->
                                           (decision(Explained))#{allowed => false, retry_ms => retry_ms(Explained, Hits)}
                                   end)
    end.

ask(Limiter, Hits, {Number, KeyHash}) ->
    {ok, Name} = weir_limiter:name(Limiter),
    case weir_registry:spec(Name) of
        {ok, #{shadow := false, timeout := Timeout}} -> weir_replica:ask(Number, KeyHash, Hits, Timeout);
        _ -> unknown
    end.

of_table(Limiter, Key, Answer) ->
    case weir_table:explain(Limiter, Key) of
        #{} = Explained -> Answer(Explained);
        Wrong -> Wrong
    end.

decision(Explained) ->
    maps:with([limit, remaining, reset_ms], Explained).

%% Others' claims count as long as they are undecided, so the table may have room for what was denied: the moment after is as
%% good as any then.
retry_ms(#{capacity := Capacity}, Hits) when Hits > Capacity ->
    infinity;
retry_ms(#{capacity := Capacity, interval_ns := IntervalNs, tat_ns := Tat, now_ns := Now}, Hits) ->
    max(1, (max(Tat, Now) + (Hits - Capacity) * IntervalNs - Now + 999999) div 1000000).

minus(infinity) -> infinity;
minus(Ms) -> -Ms.
