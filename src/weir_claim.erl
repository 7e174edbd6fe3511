%% @private
%% @doc Hits above this node's share, under `large_hits => claim': the other nodes are asked before they are admitted.
%%
%% One round trip through weir_replica, at most the limiter's `timeout'. When no answer comes in that time, and for what isn't
%% asked (a limiter in shadow), this node decides alone, as `large_hits => admit' does.
%%
%% Those of a batch are asked at the same time, after the rest of the batch was decided.
-module(weir_claim).

-export([decide/4, decide_many/1]).

-type item() :: {weir_nif:limiter(), Key :: term(), Hits :: pos_integer(),
                 {weir_nif:limiter_number(), weir_nif:key_hash()}}.

%% Claims under way at a time for one batch; the machine has 1024 for all.
-define(PART, 256).

-spec decide(weir_nif:limiter(), term(), pos_integer(), {weir_nif:limiter_number(), weir_nif:key_hash()}) -> weir_nif:decision() | weir_nif:wrong().
decide(Limiter, Key, Hits, Hashed) ->
    decided(ask(Limiter, Hits, Hashed), Limiter, Key, Hits).

decided(unknown, Limiter, Key, Hits) ->
    weir_table:decide_here(Limiter, Key, Hits);
decided(true, Limiter, Key, _Hits) ->
    of_table(Limiter, Key, fun(Explained) -> (decision(Explained))#{allowed => true, retry_ms => 0, reason => ok} end);
decided(false, Limiter, Key, Hits) ->
    of_table(Limiter, Key,
             fun(Explained) ->
                     (decision(Explained))#{allowed => false, retry_ms => retry_ms(Explained, Hits), reason => limited}
             end).

%% In the order of the items. The wait for all is the longest of the limiters' timeouts: what isn't asked by then is
%% decided here.
-spec decide_many([item()]) -> [weir_nif:decision()].
decide_many(Items) ->
    in_parts(Items, erlang:monotonic_time(millisecond)).

in_parts([], _Start) ->
    [];
in_parts(Items, Start) ->
    {Part, Rest} = lists:split(min(?PART, length(Items)), Items),
    Requests = [request(Item, Start) || Item <- Part],
    Answers = [answer(Request) || Request <- Requests],
    lists:zipwith(fun late/2, Part, Answers) ++ in_parts(Rest, Start).

request({Limiter, _Key, Hits, {Number, KeyHash}}, Start) ->
    case timeout(Limiter) of
        {ok, Timeout} ->
            Deadline = Start + Timeout,
            case erlang:monotonic_time(millisecond) < Deadline of
                %% (As weir_replica:ask/4, which waits for one answer.)
                true -> {gen_server:send_request(weir_replica, {ask, Number, KeyHash, Hits}), Deadline};
                false -> unknown
            end;
        unknown ->
            unknown
    end.

answer({Request, Deadline}) ->
    case gen_server:receive_response(Request, {abs, Deadline}) of
        {reply, Allowed} -> Allowed;
        _TooLateOrGone -> unknown
    end;
answer(unknown) ->
    unknown.

late({Limiter, Key, Hits, _}, Answer) ->
    case decided(Answer, Limiter, Key, Hits) of
        #{} = Decision -> Decision;
        _Gone -> weir_table:decide_late(Limiter, Key, Hits)
    end.

ask(Limiter, Hits, {Number, KeyHash}) ->
    case timeout(Limiter) of
        {ok, Timeout} -> weir_replica:ask(Number, KeyHash, Hits, Timeout);
        unknown -> unknown
    end.

timeout(Limiter) ->
    {ok, Name} = weir_limiter:name(Limiter),
    case weir_specs:spec(Name) of
        {ok, #{shadow := false, timeout := Timeout}} -> {ok, Timeout};
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
