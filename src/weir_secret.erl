%% @private
%% @doc The secret under which keys are hashed, the same on all nodes of a cluster.
%%
%% ```
%% {weir, [{secret, <<"sixteen bytes or more">>}]}     % or {file, Path}, or {env, "NAME"}
%% {weir, [..., {next_secret, {file, "/etc/weir/next"}}]}   % for a rotation: read when one is asked for
%% {weir, [..., {carry_ms, 86400000}]}      % for so long, at most, levels are carried over after one: a day by default
%% '''
%%
%% Without that entry it comes from the cookie of the distribution, which the nodes of one Erlang cluster have in common; a node
%% without distribution takes a random one at each start. Sixteen bytes are derived of it for the hash, and eight more by which
%% nodes see whether they have the same: only those travel. Neither is logged, and no error shows what was configured. No process
%% keeps a secret: it goes from its source into the NIF.
-module(weir_secret).

-export([load/0, next/0, ready/2, rotate/2, rotation_left_ms/0, carry_ms/0]).

-export_type([id/0]).

-type id() :: <<_:64>>.
-type message() :: binary().

-define(LEAST_BYTES, 16).
-define(MOST_BYTES, 65536).
-define(CARRY_MS, 86400000).
-define(MOST_CARRY_MS, 365 * 86400000).

%% Takes what is configured into use. The message of an error is a sentence for whoever wrote the configuration.
-spec load() -> {ok, id()} | {error, message()}.
load() ->
    case current() of
        {ok, Secret, Id} ->
            ok = weir_nif:set_secret(Secret),
            {ok, Id};
        {error, _} = Error ->
            Error
    end.

current() ->
    case application:get_env(weir, secret) of
        undefined -> derived(unconfigured());
        {ok, Source} -> configured(Source, "secret")
    end.

unconfigured() ->
    case is_alive() of
        true -> atom_to_binary(erlang:get_cookie());
        false -> crypto:strong_rand_bytes(32)
    end.

%% The secret that is to come next, as its source says at this moment.
-spec next() -> {ok, id()} | {error, message()}.
next() ->
    case upcoming() of
        {ok, _Secret, Id} -> {ok, Id};
        {error, _} = Error -> Error
    end.

upcoming() ->
    case application:get_env(weir, next_secret) of
        undefined -> {error, <<"no next_secret is configured: it takes what secret does">>};
        {ok, Source} -> configured(Source, "next_secret")
    end.

%% Whether this one could be taken into use now. Forced, it needn't wait until the rotation before is over.
-spec ready(id(), Force :: boolean()) -> ok | {error, message()}.
ready(Id, Force) ->
    case {upcoming(), rotation_left_ms()} of
        {{ok, _, Id}, Left} when Left =:= 0; Force -> ok;
        {{ok, _, Id}, Left} -> busy(Left);
        {{ok, _, _}, _} -> {error, <<"its next_secret is another one">>};
        {{error, _} = Error, _} -> Error
    end.

%% From now on keys are hashed under the next secret, if it is this one; their levels are carried over. Forced while those of
%% the rotation before are, what wasn't carried over yet is forgotten.
-spec rotate(id(), Force :: boolean()) -> ok | {error, message()}.
rotate(Id, Force) ->
    case upcoming() of
        {ok, Secret, Id} ->
            {ok, CarryMs} = carry_ms(),
            case weir_nif:rotate_secret(Secret, CarryMs * 1000000, Force) of
                ok -> ok;
                {busy, Left} -> busy(Left)
            end;
        {ok, _, _} -> {error, <<"its next_secret is another one">>};
        {error, _} = Error -> Error
    end.

%% For how long levels are carried over at most, as configured.
-spec carry_ms() -> {ok, non_neg_integer()} | {error, message()}.
carry_ms() ->
    case application:get_env(weir, carry_ms, ?CARRY_MS) of
        Ms when is_integer(Ms), Ms >= 0, Ms =< ?MOST_CARRY_MS -> {ok, Ms};
        Other -> {error, weir_error:sentence("carry_ms is a number of milliseconds up to ~b (a year), got ~0tP", [?MOST_CARRY_MS, Other, 12])}
    end.

%% For so long questions still look for what is known of their key under the secret before.
-spec rotation_left_ms() -> non_neg_integer().
rotation_left_ms() ->
    weir_nif:rotation_left().

busy(LeftMs) ->
    {error, weir_error:sentence("levels are still carried over from the last rotation: try again in ~b s, or after a leak at once with "
                    "weir:rotate_secret(#{force => true}), which forgets those that weren't", [LeftMs div 1000 + 1])}.

configured(Bytes, Name) when is_binary(Bytes) ->
    long_enough(Bytes, Name);
configured({file, Path}, Name) when is_list(Path); is_binary(Path) ->
    %% At most what is looked at is read: the file may be a device.
    case read(Path) of
        {ok, Bytes} ->
            long_enough(without_newline(Bytes), ["the ", Name, " in ", Path]);
        {error, Reason} ->
            {error, weir_error:sentence("the ~s can't be read from ~ts: ~ts", [Name, Path, file:format_error(Reason)])}
    end;
configured({env, Variable}, Name) when is_list(Variable) ->
    case os:getenv(Variable) of
        false -> {error, weir_error:sentence("the ~s is to be in ~ts of the environment, which isn't set", [Name, Variable])};
        Text -> of_environment(unicode:characters_to_binary(Text), ["the ", Name, " in ", Variable, " of the environment"])
    end;
configured(_, Name) ->
    {error, weir_error:sentence("~s is a binary of at least 16 bytes, {file, Path}, or {env, \"NAME\"}", [Name])}.

of_environment(Bytes, What) when is_binary(Bytes) -> long_enough(Bytes, What);
of_environment(_, What) -> {error, weir_error:sentence("~ts is not UTF-8", [What])}.

read(Path) ->
    case file:open(Path, [read, binary, raw]) of
        {ok, File} ->
            Read = file:read(File, ?MOST_BYTES),
            _ = file:close(File),
            case Read of
                eof -> {ok, <<>>};
                _ -> Read
            end;
        {error, _} = Error ->
            Error
    end.

%% What editors and `echo' end a file with.
without_newline(Bytes) ->
    case byte_size(Bytes) - 1 of
        Size when Size >= 0, binary_part(Bytes, Size, 1) =:= <<"\n">> -> binary_part(Bytes, 0, Size);
        _ -> Bytes
    end.

long_enough(Bytes, _What) when byte_size(Bytes) >= ?LEAST_BYTES ->
    derived(Bytes);
long_enough(Bytes, What) ->
    {error, weir_error:sentence("~ts has ~b bytes; it needs at least ~b: `openssl rand -base64 24' makes one",
                    [What, byte_size(Bytes), ?LEAST_BYTES])}.

derived(Material) ->
    <<Secret:16/binary, _/binary>> = crypto:mac(hmac, sha256, <<"weir 1: keys">>, Material),
    <<Id:8/binary, _/binary>> = crypto:mac(hmac, sha256, <<"weir 1: which secret">>, Material),
    {ok, Secret, Id}.
