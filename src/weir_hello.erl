%% @private
%% @doc What nodes say when they greet each other, and what one makes of it. Pure.
%%
%% ```
%% {weir_members, Envelope, hello | welcome | bye | stop, #{node => ..., versions => {Least, Most}, ...}}
%% '''
%%
%% `versions' are the protocols that a node speaks. Two nodes keep to the least of both mosts; if one of them doesn't speak that
%% any more, they refuse each other. `Envelope' is the least that the sender speaks: nodes from before there were versions
%% compare it with their own, which is 1. What a hello doesn't have, its sender doesn't know; what isn't known here is left alone.
%%
%% ```
%% protocol 1   {weir_frame, 1, From, Kind, Frame}: anybody's word is taken for From. No versions, features or tokens in hellos
%% protocol 2   {weir_frame, 2, From, Token, Kind, Frame}: the token is what the receiver told From, and nobody else, in its hello
%% '''
%%
%% `features' are names of what a node understands beyond its protocol, so that others may send it: `items_with_length', items of
%% frames that say how long they are, and are skipped where they aren't known.
-module(weir_hello).

-export([versions/0, features/0, envelope/0, agreed/1, terms/2, judge/2, text/1]).

-export_type([terms/0, own/0, verdict/0, reason/0]).

-type version() :: pos_integer().
-type token() :: <<_:64>>.
%% How to talk to a node: under which protocol, with what in its frames, and what it understands beyond.
-type terms() :: #{protocol := version(), token := none | token(), features := [binary()]}.
%% What this node knows when it hears a hello. `next' is read only if it is needed; `same' is another member of the same number;
%% `id' and `incarnation' are the number and the highest run that are known of the one that greets; `alone' says that there are no
%% others.
-type own() :: #{id := non_neg_integer(), secret := weir_secret:id(), before := none | weir_secret:id(), next := fun(() -> none | weir_secret:id()),
                 alone := boolean(), same := none | node(), incarnation := non_neg_integer()}.
%% `stale' was said before the node started again, or before it left; `behind' hashes under the secret before this one's, `next'
%% under the one after it.
-type verdict() :: ok | stale | behind | next | {refused, reason()}.
-type reason() :: secret | early | behind | malformed | {protocol, term()} | {number, node()} | {rotation, binary()}.

-define(LEAST, 1).
-define(MOST, 2).
-define(FEATURES, [<<"items_with_length">>]).
-define(MAX_VERSION, 16#ffff).
-define(MAX_FEATURES, 64).
-define(MAX_MEMBERS, 4096).
-define(MAX_INCARNATION, (1 bsl 62)).

-spec versions() -> {Least :: version(), Most :: version()}.
versions() -> {?LEAST, ?MOST}.

-spec features() -> [binary()].
features() -> ?FEATURES.

-spec envelope() -> version().
envelope() -> ?LEAST.

%% @doc Under which protocol two nodes talk, of which the other speaks these.
-spec agreed({Least :: version(), Most :: version()}) -> {ok, version()} | none.
agreed({Least, Most}) ->
    Both = min(Most, ?MOST),
    case Both >= max(Least, ?LEAST) of
        true -> {ok, Both};
        false -> none
    end.

%% @doc How to talk to the sender of a hello.
-spec terms(Envelope :: term(), Told :: map()) -> {ok, terms()} | {refused, reason()}.
terms(Envelope, Told) ->
    case maps:get(versions, Told, {Envelope, Envelope}) of
        {Least, Most} when is_integer(Least), Least >= 1, is_integer(Most), Most >= Least, Most =< ?MAX_VERSION ->
            terms(agreed({Least, Most}), {Least, Most}, Told);
        Other ->
            {refused, {protocol, Other}}
    end.

terms({ok, Protocol}, _, Told) ->
    Token = maps:get(token, Told, none),
    Features = maps:get(features, Told, []),
    case good_token(Token, Protocol) andalso names(Features, ?MAX_FEATURES) of
        true -> {ok, #{protocol => Protocol, token => Token, features => Features}};
        false -> {refused, malformed}
    end;
terms(none, Versions, _Told) ->
    {refused, {protocol, Versions}}.

good_token(none, Protocol) -> Protocol =:= 1;
good_token(Token, _Protocol) -> is_binary(Token) andalso byte_size(Token) =:= 8.

%% (The list may be improper, or very long.)
names([], _Left) -> true;
names([Name | Names], Left) when is_binary(Name), byte_size(Name) =< 64, Left > 0 -> names(Names, Left - 1);
names(_, _) -> false.

%% @doc Whether the sender of a hello or welcome, which are told in the same way, becomes a member.
-spec judge(Told :: map(), own()) -> verdict().
judge(#{id := Id, incarnation := Incarnation, secret := Secret, yours := Yours, members := Members, left := Left} = Told,
      #{id := Number, same := Same, incarnation := Known} = Own)
  when is_integer(Incarnation), Incarnation >= 0, Incarnation < ?MAX_INCARNATION,
       is_integer(Yours), Yours >= 0, Yours < ?MAX_INCARNATION, length(Members) =< ?MAX_MEMBERS, length(Left) >= 0 ->
    case {Number =:= Id, secret(Secret, maps:get(before, Told, none), Own)} of
        {false, _} -> {refused, malformed};
        {_, unknown} -> {refused, secret};
        {_, early} -> {refused, early};
        _ when Same =/= none -> {refused, {number, Same}};
        _ when Incarnation =/= 0, Incarnation < Known -> stale;
        {_, current} -> ok;
        {_, Other} -> Other
    end;
judge(_Told, _Own) ->
    {refused, malformed}.

%% How another's secret stands to this node's. A node that is with others follows nobody who wasn't with them before.
secret(Theirs, _, #{secret := Theirs}) -> current;
secret(Theirs, _, #{before := Theirs}) -> behind;
secret(Theirs, Before, #{secret := Own, next := Next, alone := Alone}) ->
    case Next() of
        Theirs when Before =:= Own; Alone -> next;
        Theirs -> early;
        _ -> unknown
    end.

%% @doc Why a node is refused, and what to do about it.
-spec text(reason()) -> binary().
text(secret) ->
    <<"it hashes keys under another secret: give all nodes the same `secret' in weir's configuration, or the same cookie before weir "
      "starts">>;
text(early) ->
    <<"it hashes keys under what is next_secret here: call weir:rotate_secret() when all nodes have that">>;
text(behind) ->
    <<"it hashes keys under the secret before the last rotation: give it the one of the others as `next_secret', and call "
      "weir:rotate_secret() there">>;
text({rotation, Message}) ->
    weir_error:sentence("it hashes keys under the next secret, which this node can't take into use: ~ts", [Message]);
text({protocol, {Least, Most}}) when is_integer(Least), is_integer(Most) ->
    weir_error:sentence("it speaks versions ~b to ~b of the protocol, this node ~b to ~b: upgrade by way of a release that speaks one of each",
            [Least, Most, ?LEAST, ?MOST]);
text({protocol, Other}) ->
    weir_error:sentence("it speaks version ~0tP of the protocol, this node ~b to ~b: upgrade by way of a release that speaks both",
            [Other, 5, ?LEAST, ?MOST]);
text({number, Other}) ->
    weir_error:sentence("its name has the same number as that of ~ts: give it another name", [Other]);
text(malformed) ->
    <<"what it says can't be understood: run the same version of weir on both">>.
