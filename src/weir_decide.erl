%% @private
%% @doc Asks other nodes what this one may not decide alone: keys of `scope => exact' (weir_exact), and large hits under
%% `large_hits => claim' (weir_claim).
%%
%% ```
%% weir -> weir_table -> weir_nif                    what this node decides alone
%%    `--> weir_decide -> weir_exact, weir_claim     the rest
%% '''
-module(weir_decide).

-export([check/4, decide/3, check_many/1, decide_many/1, reset/2]).

%% @doc What `weir_table:check/3' didn't answer.
-spec check(weir_nif:ask() | weir_table:wrong(), weir_nif:limiter(), term(), pos_integer()) -> weir_nif:answer() | weir_table:wrong().
check(Wrong, Limiter, Key, Hits) ->
    case weir_table:check_again(Wrong, Limiter, Key, Hits) of
        {Who, Number, KeyHash} -> answer(ask(Who, Limiter, Key, Hits, {Number, KeyHash}));
        Answer -> Answer
    end.

-spec decide(weir_nif:limiter(), term(), pos_integer()) -> weir_nif:decision() | weir_table:wrong().
decide(Limiter, Key, Hits) ->
    case weir_table:decide(Limiter, Key, Hits) of
        {Who, Number, KeyHash} -> ask(Who, Limiter, Key, Hits, {Number, KeyHash});
        Decision -> Decision
    end.

ask(claim, Limiter, Key, Hits, Hashed) -> weir_claim:decide(Limiter, Key, Hits, Hashed);
ask(owner, Limiter, Key, Hits, Hashed) -> weir_exact:decide(Limiter, Key, Hits, Hashed).

-spec check_many([{weir_nif:limiter(), term(), pos_integer()}]) -> [weir_nif:answer()] | weir_table:wrong_list().
check_many(Items) ->
    asked(weir_table:check_many(Items), Items, fun answer/1).

-spec decide_many([{weir_nif:limiter(), term(), pos_integer()}]) -> [weir_nif:decision()] | weir_table:wrong_list().
decide_many(Items) ->
    asked(weir_table:decide_many(Items), Items, fun(Decision) -> Decision end).

-spec reset(weir_nif:limiter(), term()) -> ok | {error, too_many_resets | unavailable | {not_reached, [node()]}} | weir_table:wrong().
reset(Limiter, Key) ->
    case weir_table:reset(Limiter, Key) of
        {replicated, Number, Hashes, Now} ->
            Wait = wait_ms(Limiter),
            case [Error || Hash <- Hashes, {error, _} = Error <- [weir_replica:reset(Number, Hash, Now, Wait)]] of
                [Error | _] -> failed(Error, weir_table:reset(Limiter, Key));
                [] -> forgotten(Hashes, Wait)
            end;
        Answer -> Answer
    end.

%% (The limiter may have been deleted meanwhile.)
failed(Error, {replicated, _, _, _}) -> Error;
failed(_Error, Answer) -> Answer.

%% Only after the reset itself: what an owner says from here on, it says of the key as it is since then.
forgotten(Hashes, Wait) ->
    case Wait > 0 andalso weir_exact:forget(Hashes, Wait) of
        [_ | _] = Missed -> {error, {not_reached, Missed}};
        _ -> ok
    end.

%% One of scope exact is decided elsewhere: its owner must have heard of it.
wait_ms(Limiter) ->
    {ok, Name} = weir_limiter:name(Limiter),
    case weir_specs:spec(Name) of
        {ok, #{scope := exact, timeout := Timeout}} -> Timeout;
        _ -> 0
    end.

%% ---- internal ----

%% The answers of other nodes take the places of the questions to them. Owners are asked all at once, then claims are.
asked({asks, Answers}, Items, Answer) ->
    Asks = [{Who, {element(1, Item), element(2, Item), element(3, Item), {Number, KeyHash}}}
            || {{Who, Number, KeyHash}, Item} <- lists:zip(Answers, Items)],
    Owned = weir_exact:decide_many([Ask || {owner, Ask} <- Asks]),
    Claimed = weir_claim:decide_many([Ask || {claim, Ask} <- Asks]),
    answered(Answers, Owned, Claimed, Answer);
asked(Answers, _Items, _Answer) ->
    Answers.

answered([{owner, _, _} | Answers], [Decision | Owned], Claimed, Answer) ->
    [Answer(Decision) | answered(Answers, Owned, Claimed, Answer)];
answered([{claim, _, _} | Answers], Owned, [Decision | Claimed], Answer) ->
    [Answer(Decision) | answered(Answers, Owned, Claimed, Answer)];
answered([Done | Answers], Owned, Claimed, Answer) ->
    [Done | answered(Answers, Owned, Claimed, Answer)];
answered([], [], [], _Answer) ->
    [].

answer(#{allowed := true, remaining := Remaining}) -> {allow, Remaining};
answer(#{allowed := false, retry_ms := RetryMs}) -> {deny, RetryMs};
answer(Wrong) -> Wrong.
