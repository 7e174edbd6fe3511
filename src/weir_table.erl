%% @private
%% @doc The typed face of the key tables: what the NIF can't do alone, terms that it doesn't hash and atoms that it hasn't
%% seen, is done here and asked again.
%%
%% What this node may not decide alone is answered with a question, {claim | owner, Number, KeyHash}: weir_decide asks it.
-module(weir_table).

-export([check/3, check_again/4, decide/3, decide_here/3, decide_late/3, check_many/1, decide_many/1]).
-export([peek/2, explain/2, reset/2, key_hash/1, stats/0]).

-export_type([wrong/0, wrong_list/0, stats/0]).

-type wrong() :: weir_nif:wrong().
-type wrong_list() :: {item, Index :: non_neg_integer(), weir_nif:wrong() | bad_item} | bad_list.
-type stats() :: #{name := binary(),
                   allowed := non_neg_integer(), denied := non_neg_integer(),
                   shadow_denied := non_neg_integer(), failed := non_neg_integer(),
                   keys := non_neg_integer(), max_keys := pos_integer(),
                   evicted_keys := non_neg_integer(), evicted_tokens := non_neg_integer(),
                   memory_bytes := non_neg_integer()}.

%% weir_nif's how().
-define(NATIVE, 0).
-define(EXTERNAL, 1).
-define(HERE, 2).

%% The hot path: just the NIF. What isn't an answer goes to check_again/4.
-spec check(weir_nif:limiter(), term(), pos_integer()) -> weir_nif:answer() | weir_nif:ask() | wrong().
check(Limiter, Key, Hits) ->
    weir_nif:check(Limiter, Key, Hits).

-spec check_again(weir_nif:ask() | wrong(), weir_nif:limiter(), term(), pos_integer()) -> weir_nif:answer() | weir_nif:ask() | wrong().
check_again(Wrong, Limiter, Key, Hits) ->
    again(Wrong, Limiter, Key, fun(Form, How) -> weir_nif:check(Limiter, Form, Hits, How) end).

-spec decide(weir_nif:limiter(), term(), pos_integer()) -> weir_nif:decision() | weir_nif:ask() | wrong().
decide(Limiter, Key, Hits) ->
    ask(Limiter, Key, fun(Form, How) -> weir_nif:decide(Limiter, Form, Hits, How) end).

%% Without asking other nodes.
-spec decide_here(weir_nif:limiter(), term(), pos_integer()) -> weir_nif:decision() | wrong().
decide_here(Limiter, Key, Hits) ->
    ask(Limiter, Key, fun(Form, How) -> weir_nif:decide(Limiter, Form, Hits, How bor ?HERE) end).

%% ... one of a batch whose other answers are given already. A limiter that is deleted meanwhile is no fault of the
%% caller's: it is allowed, as by `on_error', whose setting went with it.
-spec decide_late(weir_nif:limiter(), term(), pos_integer()) -> weir_nif:decision().
decide_late(Limiter, Key, Hits) ->
    case decide_here(Limiter, Key, Hits) of
        #{} = Decision -> Decision;
        _Gone -> #{allowed => true, limit => 1, remaining => 0, reset_ms => 0, retry_ms => 0, reason => error}
    end.

-spec peek(weir_nif:limiter(), term()) -> weir_nif:look() | wrong().
peek(Limiter, Key) ->
    ask(Limiter, Key, fun(Form, How) -> weir_nif:peek(Limiter, Form, How) end).

%% Here; what is `replicated' the others are to hear of. While a rotation is under way a key goes by two hashes.
-spec reset(weir_nif:limiter(), term()) -> ok | {replicated, weir_nif:limiter_number(), [weir_nif:key_hash()], NowNs :: pos_integer()} | wrong().
reset(Limiter, Key) ->
    ask(Limiter, Key, fun(Form, How) -> weir_nif:reset(Limiter, Form, How) end).

-spec explain(weir_nif:limiter(), term()) -> map() | wrong().
explain(Limiter, Key) ->
    case ask(Limiter, Key, fun(Form, How) -> weir_nif:explain(Limiter, Form, How) end) of
        {Decision, Level, Tat, Now, IntervalNs, Shadow, OnError, Stats} ->
            #{limit := Capacity} = Decision,
            Decision#{capacity => Capacity, interval_ns => IntervalNs, level => Level, tat_ns => Tat, now_ns => Now,
                      shadow => Shadow, on_error => OnError, table => table_stats(Stats)};
        Wrong ->
            Wrong
    end.

%% The hash that a key is known by on every node with the same secret.
-spec key_hash(term()) -> pos_integer() | wrong().
key_hash(Key) ->
    case weir_nif:key_hash(Key, ?NATIVE) of
        other_key -> weir_nif:key_hash(external(Key), ?EXTERNAL);
        Hash -> Hash
    end.

%% `asks': some of the answers are questions.
-spec check_many([{weir_nif:limiter(), term(), pos_integer()}]) ->
          [weir_nif:answer()] | {asks, [weir_nif:answer() | weir_nif:ask()]} | wrong_list().
check_many(Items) ->
    many(Items, false, {fun weir_nif:check_many/2, fun weir_nif:batch_check/2}).

-spec decide_many([{weir_nif:limiter(), term(), pos_integer()}]) ->
          [weir_nif:decision()] | {asks, [weir_nif:decision() | weir_nif:ask()]} | wrong_list().
decide_many(Items) ->
    many(Items, false, {fun weir_nif:decide_many/2, fun weir_nif:batch_decide/2}).

-spec stats() -> [stats()].
stats() ->
    [(table_stats(Table))#{name => Name, allowed => Allowed, denied => Denied, shadow_denied => ShadowDenied,
                           failed => Failed}
     || {Name, Allowed, Denied, ShadowDenied, Failed, Table} <- weir_nif:stats()].

%% ---- internal ----

table_stats({Keys, MaxKeys, EvictedKeys, EvictedTokens, Bytes}) ->
    #{keys => Keys, max_keys => MaxKeys, evicted_keys => EvictedKeys, evicted_tokens => EvictedTokens,
      memory_bytes => Bytes}.

ask(Limiter, Key, Ask) ->
    again(Ask(Key, ?NATIVE), Limiter, Key, Ask).

%% What is missing is added once: an atom that nobody has used for the limiter yet becomes an alias of its name; a
%% term that the NIF doesn't hash goes by its external format.
again(unknown_limiter, Limiter, Key, Ask) when is_atom(Limiter) ->
    case learn_alias(Limiter) of
        true -> again(Ask(Key, ?NATIVE), known, Key, Ask);
        false -> unknown_limiter
    end;
again(other_key, _Limiter, Key, Ask) ->
    Ask(external(Key), ?EXTERNAL);
again(Answer, _Limiter, _Key, _Ask) ->
    Answer.

learn_alias(Atom) ->
    case weir_limiter:name(Atom) of
        {ok, Name} -> weir_nif:alias(Atom, Name);
        {error, _} -> false
    end.

%% The format is the same on all nodes of OTP 25 to 29: atoms as UTF-8 (minor_version 2), maps in a fixed order.
external(Key) ->
    term_to_binary(Key, [deterministic, {minor_version, 2}]).

%% Nothing is counted unless all items are well formed. Mixed: some items have been mended by to_external/1.
many(Items, Mixed, {Decide, Answer} = How) when is_list(Items) ->
    case decoded(Decide(Items, Mixed), Mixed) of
        bad_list -> bad_list;
        %% (The tail of the list may not have been seen yet.)
        {error, Index, Wrong} when length(Items) >= 0 -> mend(Index, Wrong, Items, Mixed, How);
        {error, _, _} -> bad_list;
        {batch, Batch} -> joined(parts(Batch, 0, Answer));
        Answers -> Answers
    end;
many(_, _Mixed, _How) ->
    bad_list.

%% A list that is too long for one call is decoded by as many as it takes.
decoded({long, Batch, Rest}, Mixed) ->
    case weir_nif:batch_add(Batch, Rest, Mixed) of
        done -> {batch, Batch};
        More -> decoded(More, Mixed)
    end;
decoded(Answers, _Mixed) ->
    Answers.

parts(Batch, Part, Answer) ->
    case Answer(Batch, Part) of
        done -> [];
        Answers -> [Answers | parts(Batch, Part + 1, Answer)]
    end.

joined(Parts) ->
    Answers = lists:append([plain(Part) || Part <- Parts]),
    case lists:any(fun is_tuple/1, Parts) of
        true -> {asks, Answers};
        false -> Answers
    end.

plain({asks, Answers}) -> Answers;
plain(Answers) -> Answers.

mend(Index, unknown_limiter, Items, Mixed, How) ->
    Limiter = element(1, lists:nth(Index + 1, Items)),
    case is_atom(Limiter) andalso learn_alias(Limiter) of
        true -> many(Items, Mixed, How);
        false -> {item, Index, unknown_limiter}
    end;
mend(_, other_key, Items, false, How) ->
    many([to_external(Item) || Item <- Items], true, How);
mend(Index, Wrong, _Items, _Mixed, _How) ->
    {item, Index, Wrong}.

to_external({Limiter, Key, Hits} = Item) ->
    case weir_nif:key_hash(Key, ?NATIVE) of
        other_key -> {Limiter, external(Key), Hits, external};
        _ -> Item
    end;
%% Malformed, and reported as such by the NIF: it must not pass for a mended one.
to_external(_) ->
    malformed.
