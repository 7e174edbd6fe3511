%% @private
%% @doc What to say of an option that doesn't exist: the one that was probably meant, and all there are. Pure.
-module(weir_options).

-export([unknown/2]).

%% @doc The part of a sentence that names an unknown option.
%%
%% ```
%% unknown(brust, [rate, burst])     "brust: did you mean burst? The options are rate, burst"
%% unknown(window, [rate, burst])    "window; the options are rate, burst"
%% '''
-spec unknown(Given :: term(), Known :: [atom()]) -> iolist().
unknown(Given, Known) ->
    All = lists:join(", ", [atom_to_list(Name) || Name <- Known]),
    case nearest(string:lowercase(text(Given)), Known) of
        {ok, Name} -> io_lib:format("~0tP: did you mean ~s? The options are ~ts", [Given, 12, Name, All]);
        none -> io_lib:format("~0tP; the options are ~ts", [Given, 12, All])
    end.

%% ---- internal ----

%% Strings and binaries are often meant as atoms; other terms are near to nothing.
text(Given) when is_atom(Given) -> atom_to_list(Given);
text(Given) when is_binary(Given); is_list(Given) ->
    try unicode:characters_to_list(Given) of
        Text when is_list(Text) -> Text;
        _ -> ""
    catch
        error:badarg -> ""
    end;
text(_) -> "".

nearest(Text, Known) ->
    case lists:sort([{distance(Text, Name), Name} || Atom <- Known, Name <- [atom_to_list(Atom)], near(Text, Name)]) of
        [{_, Name} | _] -> {ok, Name};
        [] -> none
    end.

%% A name cut short, or one of every three letters is wrong.
near(Text, Name) ->
    length(Text) >= 3 andalso length(Text) =< 2 * length(Name)
        andalso (lists:prefix(Text, Name) orelse distance(Text, Name) =< (length(Text) + 1) div 3).

%% Levenshtein's, a row of the table at a time.
distance(Left, Right) ->
    First = lists:seq(0, length(Right)),
    lists:last(lists:foldl(fun(Letter, Above) -> row(Letter, Right, Above, [hd(Above) + 1]) end, First, Left)).

row(_Letter, [], _Above, Row) ->
    lists:reverse(Row);
row(Letter, [Other | Right], [Diagonal | [Up | _] = Above], [Before | _] = Row) ->
    Changed = case Letter of Other -> Diagonal; _ -> Diagonal + 1 end,
    row(Letter, Right, Above, [lists:min([Changed, Up + 1, Before + 1]) | Row]).
