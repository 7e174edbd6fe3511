%% @doc A peer: a token bucket in ETS, as it is usually written: look up, compute, insert. Two processes that hit one key
%% at once may both read the same row, and one of their hits is lost: more than the limit passes. It is here because it
%% is common, not because it is right.
%%
%% A row is {Key, Tokens, UpdatedMs}. Denials write nothing.
-module(peers_bucket).

-export([new/0, hit/4]).

-spec new() -> ets:table().
new() ->
    ets:new(?MODULE, [set, public, {read_concurrency, true}, {write_concurrency, true}, {decentralized_counters, true}]).

-spec hit(ets:table(), term(), TokensPerMs :: float(), Capacity :: pos_integer()) ->
          {allow, non_neg_integer()} | {deny, pos_integer()}.
hit(Table, Key, TokensPerMs, Capacity) ->
    Now = erlang:system_time(millisecond),
    case ets:lookup(Table, Key) of
        [{_, Tokens, Updated}] ->
            take(Table, Key, min(Capacity, Tokens + (Now - Updated) * TokensPerMs), Now, TokensPerMs);
        [] ->
            take(Table, Key, Capacity, Now, TokensPerMs)
    end.

take(Table, Key, Tokens, Now, _TokensPerMs) when Tokens >= 1 ->
    true = ets:insert(Table, {Key, Tokens - 1, Now}),
    {allow, trunc(Tokens - 1)};
take(_Table, _Key, Tokens, _Now, TokensPerMs) ->
    {deny, ceil((1 - Tokens) / TokensPerMs)}.
