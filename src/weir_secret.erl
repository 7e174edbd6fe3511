%% @private
%% @doc The secret under which keys are hashed, the same on all nodes of a cluster.
%%
%% ```
%% {weir, [{secret, <<"sixteen bytes or more">>}]}     % or {file, Path}, or {env, "NAME"}
%% '''
%%
%% Without that entry it comes from the cookie of the distribution, which the nodes of one Erlang cluster have in common; a node
%% without distribution takes a random one at each start. Sixteen bytes are derived of it for the hash, and eight more by which
%% nodes see whether they have the same: only those travel. Neither is logged, and no error shows what was configured.
-module(weir_secret).

-export([load/0]).

-export_type([id/0]).

-type id() :: <<_:64>>.

-define(LEAST_BYTES, 16).
-define(MOST_BYTES, 65536).

%% The message of an error is a sentence for whoever wrote the configuration.
-spec load() -> {ok, Secret :: <<_:128>>, id()} | {error, Message :: binary()}.
load() ->
    case application:get_env(weir, secret) of
        undefined -> derived(unconfigured());
        {ok, Source} -> configured(Source)
    end.

unconfigured() ->
    case is_alive() of
        true -> atom_to_binary(erlang:get_cookie());
        false -> crypto:strong_rand_bytes(32)
    end.

configured(Bytes) when is_binary(Bytes) ->
    long_enough(Bytes, "secret");
configured({file, Path}) when is_list(Path); is_binary(Path) ->
    %% At most what is looked at is read: the file may be a device.
    case read(Path) of
        {ok, Bytes} ->
            long_enough(without_newline(Bytes), ["the secret in ", Path]);
        {error, Reason} ->
            {error, message("the secret can't be read from ~ts: ~ts", [Path, file:format_error(Reason)])}
    end;
configured({env, Name}) when is_list(Name) ->
    case os:getenv(Name) of
        false -> {error, message("the secret is to be in ~ts of the environment, which isn't set", [Name])};
        Text -> long_enough(unicode:characters_to_binary(Text), ["the secret in ", Name, " of the environment"])
    end;
configured(_) ->
    {error, <<"secret is a binary of at least 16 bytes, {file, Path}, or {env, \"NAME\"}">>}.

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
    {error, message("~ts has ~b bytes; it needs at least ~b: `openssl rand -base64 24' makes one",
                    [What, byte_size(Bytes), ?LEAST_BYTES])}.

derived(Material) ->
    <<Secret:16/binary, _/binary>> = crypto:mac(hmac, sha256, <<"weir 1: keys">>, Material),
    <<Id:8/binary, _/binary>> = crypto:mac(hmac, sha256, <<"weir 1: which secret">>, Material),
    {ok, Secret, Id}.

message(Format, Args) ->
    unicode:characters_to_binary(io_lib:format(Format, Args)).
