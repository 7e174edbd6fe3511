%% @private
%% @doc Limiters of `scope => exact', as who asks sees them: each key has an owner among the nodes, which is asked by way of this
%% node's weir_owner.
%%
%% The limiter's `timeout' is the whole wait; of a batch, the longest of its limiters' is. What isn't answered in time, or isn't
%% asked because too many wait, this node decides on what it knows, as under `scope => cluster', and the partition policy applies.
-module(weir_exact).

-export([decide/4, decide_many/1, forget/2]).

-type hashed() :: {weir_nif:limiter_number(), weir_nif:owned_key()}.
-type item() :: {weir_nif:limiter(), Key :: term(), Hits :: pos_integer(), hashed()}.

%% Questions of one message.
-define(PART, 512).
%% Between two questions while weir_owner is being started again.
-define(AGAIN_MS, 5).

-spec decide(weir_nif:limiter(), term(), pos_integer(), hashed()) -> weir_nif:decision() | weir_nif:wrong().
decide(Limiter, Key, Hits, Hashed) ->
    case ask([{Limiter, Key, Hits, Hashed}]) of
        [Outcome] when is_tuple(Outcome) -> decision(Outcome);
        [here] -> weir_table:decide_here(Limiter, Key, Hits);
        [unknown_limiter] -> unknown_limiter
    end.

-spec decide_many([item()]) -> [weir_nif:decision()].
decide_many(Items) ->
    lists:zipwith(fun(_Item, Outcome) when is_tuple(Outcome) -> decision(Outcome);
                     ({Limiter, Key, Hits, _}, _) -> weir_table:decide_late(Limiter, Key, Hits)
                  end, Items, ask(Items)).

decision({Allowed, Limit, Remaining, ResetMs, RetryMs, _Tat, Reason}) ->
    #{allowed => Allowed, limit => Limit, remaining => Remaining, reset_ms => ResetMs, retry_ms => RetryMs,
      reason => Reason}.

%% After a reset: what is known on this node and on those that are connected, and denies the key. The nodes that didn't answer in
%% WaitMs for each hash.
%%
%% Why a reset holds on all nodes that answered: their tables, and with them the owner's, were reset before this is called. A
%% node keeps no answer to a question that it sent before it forgot. So what it knows after this, an owner said after its own
%% table was reset. A node that isn't reached forgets by itself within two seconds (include/weir/known_levels.hpp).
-spec forget([weir_nif:key_hash()], pos_integer()) -> [node()].
forget(Hashes, WaitMs) ->
    Nodes = [node() | weir_roster:connected()],
    lists:usort([Node || Hash <- Hashes, Node <- Nodes -- forgot(Nodes, Hash, WaitMs)]).

%% (A node of the release before knows no level, and says that it doesn't know the question.)
forgot(Nodes, Hash, WaitMs) ->
    {Replies, _} = gen_server:multi_call(Nodes, weir_owner, {weir_owner, 1, node(), {forget, Hash}}, WaitMs),
    [Node || {Node, Reply} <- Replies, Reply =:= ok orelse Reply =:= unknown].

%% ---- asking ----

%% In the order of the items: the owner's outcome; `here' is decided here; `unknown_limiter' when weir is being stopped, whose
%% table of limiters goes before the limiters do. (Decided here they would be decided once more than the owner knows of.)
ask(Items) ->
    Now = erlang:monotonic_time(millisecond),
    {Asks, Known} = asks(lists:zip(lists:seq(1, length(Items)), Items), Now, [], #{}),
    Outcomes = ask_in_parts(Asks, Known),
    Answers = [maps:get(Place, Outcomes, here) || Place <- lists:seq(1, length(Items))],
    ok = weir_roster:count_owned(here, length([Here || Here <- Answers, Here =:= here])),
    Answers.

asks([{Place, {Limiter, _Key, Hits, {Number, KeyHash}}} | Items], Now, Asks, Known) ->
    {ok, Name} = weir_limiter:name(Limiter),
    case weir_specs:entry(Name) of
        {_, #{timeout := Timeout}, _} ->
            asks(Items, Now, [{Place, Number, KeyHash, Hits, Now + Timeout} | Asks], Known);
        {_, {deleted, _}, _} ->
            asks(Items, Now, Asks, Known#{Place => here});
        none ->
            asks(Items, Now, Asks, Known#{Place => unknown_limiter})
    end;
asks([], _Now, Asks, Known) ->
    {lists:reverse(Asks), Known}.

%% One part after the other, so that a long list holds nobody else up.
ask_in_parts([], Outcomes) ->
    Outcomes;
ask_in_parts(Asks, Outcomes) ->
    {Part, Rest} = split(?PART, Asks, []),
    ask_in_parts(Rest, ask(Part, Outcomes, lists:max([Deadline || {_, _, _, _, Deadline} <- Part]))).

split(N, [Ask | Asks], Part) when N > 0 -> split(N - 1, Asks, [Ask | Part]);
split(_, Asks, Part) -> {lists:reverse(Part), Asks}.

ask([], Outcomes, _Until) ->
    Outcomes;
ask(Asks, Outcomes, Until) ->
    Ref = erlang:monitor(process, weir_owner, [{alias, demonitor}]),
    _ = try weir_owner ! {weir_ask, Ref, Asks}
        catch error:badarg -> down
        end,
    Result = collect(Ref, length(Asks), Outcomes, Until),
    true = erlang:demonitor(Ref, [flush]),
    ok = flush(Ref),
    case Result of
        {down, Got} ->
            %% It is started again in a moment, or weir is being stopped.
            Left = [Ask || {Place, _, _, _, _} = Ask <- Asks, not is_map_key(Place, Got)],
            again(Left, Got, Until);
        Got ->
            Got
    end.

again(Left, Got, Until) ->
    case erlang:monotonic_time(millisecond) + ?AGAIN_MS < Until of
        true ->
            receive after ?AGAIN_MS -> ok end,
            case weir_specs:is_there() of
                true -> ask(Left, Got, Until);
                false -> maps:merge(Got, maps:from_list([{Place, unknown_limiter} || {Place, _, _, _, _} <- Left]))
            end;
        false ->
            Got
    end.

collect(_Ref, 0, Outcomes, _Until) ->
    Outcomes;
collect(Ref, Missing, Outcomes, Until) ->
    receive
        {Ref, Place, Outcome} -> collect(Ref, Missing - 1, Outcomes#{Place => Outcome}, Until);
        {'DOWN', Ref, process, _, _} -> {down, Outcomes}
    after max(0, Until - erlang:monotonic_time(millisecond)) ->
        Outcomes
    end.

flush(Ref) ->
    receive {Ref, _, _} -> flush(Ref)
    after 0 -> ok
    end.
