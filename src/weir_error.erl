%% @doc What went wrong, in a sentence: the explanations behind weir's `badarg'.
-module(weir_error).

-export([explain/2, format_error/2, sentence/2]).

%% @doc The explanation of an exception that one of weir's functions raised.
%%
%% ```
%% try weir:check(login, Ip)
%% catch error:badarg:Stack -> weir_error:explain(badarg, Stack)
%% end
%% '''
-spec explain(Reason :: term(), [tuple()]) -> binary().
explain(Reason, Stack) ->
    #{general := Text} = format_error(Reason, Stack),
    Text.

%% @private
%% @doc As `error_info' asks for it. Erlang takes any text; Elixir wants a binary.
-spec format_error(term(), [tuple()]) -> #{general := binary()}.
format_error(Reason, Stack) ->
    #{general => unicode:characters_to_binary(general(Reason, Stack))}.

%% @private
%% @doc A formatted message.
-spec sentence(io:format(), [term()]) -> binary().
sentence(Format, Args) ->
    unicode:characters_to_binary(io_lib:format(Format, Args)).

general(_Reason, [{_Module, _Function, _Args, Info} | _]) ->
    case proplists:get_value(error_info, Info, #{}) of
        #{cause := Cause} -> text(Cause);
        #{} -> "an argument is not of the right type"
    end;
general(Reason, _Stack) ->
    io_lib:format("~0tP", [Reason, 12]).

text({message, Message}) -> Message;
text({item, Index, Cause}) -> ["item ", integer_to_list(Index), " (counted from 0): ", text(Cause)];
text({unknown_limiter, Limiter}) -> unknown(Limiter);
text(long_key) -> "the key is longer than 65536 bytes: hash it, and use the hash as key";
text(bad_hits) -> "hits is an integer from 1 to 2^63-1; to look without counting, use weir:peek/2";
text(bad_item) -> "items are {Limiter, Key, Hits}";
text(bad_list) -> "items come in a proper list";
text(Cause) -> io_lib:format("~0tP", [Cause, 12]).

unknown(Limiter) when is_atom(Limiter); is_binary(Limiter); is_reference(Limiter) ->
    case whereis(weir_sup) of
        undefined -> "weir is not started: call application:ensure_all_started(weir)";
        _ -> not_there(Limiter)
    end;
unknown(Limiter) ->
    io_lib:format("a limiter is named by an atom or a binary, or is a handle of weir:compile/1; got ~0tP", [Limiter, 12]).

not_there(Limiter) when is_reference(Limiter) ->
    "the limiter is a reference, but not a handle of weir:compile/1, or one from before weir was last stopped: compile it again";
not_there(Limiter) ->
    io_lib:format("there is no limiter called ~0tP: make it with weir:put_limiter/2", [Limiter, 12]).
