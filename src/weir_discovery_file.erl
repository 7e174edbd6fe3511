%% @doc Discovery by a file: `{file, #{path => "/etc/weir/nodes"}}'.
%%
%% The file has a node's name a line; what follows a `#' is a comment, empty lines are skipped. It is reread once a second
%% (`interval_ms') as a whole: it is small, and size and time of change would miss a change within one second. Write the new
%% file beside it and rename it: a file that is read half written may hold half of a name. A line that is no name spoils the
%% whole file, which then counts for nothing: the nodes found before stay.
-module(weir_discovery_file).

-behaviour(weir_discovery).

-include_lib("kernel/include/file.hrl").

-export([init/1, lookup/1]).

-type state() :: #{path := string(), interval_ms := pos_integer()}.

%% 1024 names of the longest kind, and as much again of comments.
-define(MAX_BYTES, 524288).
-define(MAX_SHOWN, 12).

%% @private
-spec init(map()) -> {ok, state()} | {error, binary()}.
init(Given) ->
    case weir_discovery_options:parse(file, Given, options()) of
        {ok, #{path := _, interval_ms := _} = State} -> {ok, State};
        {error, _} = Error -> Error
    end.

options() ->
    [{path, required, fun weir_discovery_options:text/1, "the path of a file"},
     {interval_ms, {default, 1000}, fun weir_discovery_options:milliseconds/1, "milliseconds from 1 to 3600000"}].

%% @private
%% A failure is no reason to look less often: reading costs nothing.
-spec lookup(state()) -> {ok, [binary()], pos_integer(), state()} | {error, binary(), pos_integer(), state()}.
lookup(#{path := Path, interval_ms := Ms} = State) ->
    case read(Path) of
        {ok, Bytes} ->
            case names(binary:split(Bytes, <<"\n">>, [global]), 1, []) of
                {ok, Names} -> {ok, Names, Ms, State};
                {error, Number, Line} ->
                    {error, weir_error:sentence("line ~b of ~ts is not a node's name: ~0tP", [Number, Path, Line, ?MAX_SHOWN]), Ms, State}
            end;
        {error, Message} ->
            {error, Message, Ms, State}
    end.

%% (Reading a pipe could take for ever.)
read(Path) ->
    case file:read_file_info(Path, [raw]) of
        {ok, #file_info{type = regular}} ->
            case file:open(Path, [read, raw, binary]) of
                {ok, File} ->
                    Read = file:read(File, ?MAX_BYTES + 1),
                    _ = file:close(File),
                    whole(Path, Read);
                {error, Reason} ->
                    unreadable(Path, Reason)
            end;
        {ok, _} ->
            {error, weir_error:sentence("~ts is not a file", [Path])};
        {error, Reason} ->
            unreadable(Path, Reason)
    end.

%% What was read counts, not the size that the file had before: another may have taken its place.
whole(Path, {ok, Bytes}) when byte_size(Bytes) > ?MAX_BYTES ->
    {error, weir_error:sentence("~ts has more than ~b bytes, which is the most", [Path, ?MAX_BYTES])};
whole(_Path, {ok, Bytes}) ->
    {ok, Bytes};
whole(_Path, eof) ->
    {ok, <<>>};
whole(Path, {error, Reason}) ->
    unreadable(Path, Reason).

unreadable(Path, Reason) ->
    {error, weir_error:sentence("~ts can't be read: ~ts", [Path, file:format_error(Reason)])}.

names([], _Number, Names) ->
    {ok, lists:reverse(Names)};
names([Line | Lines], Number, Names) ->
    [Text | _] = binary:split(Line, <<"#">>),
    case trim(Text) of
        <<>> ->
            names(Lines, Number + 1, Names);
        Trimmed ->
            case weir_discovery_names:parse(Trimmed) of
                {ok, Name} -> names(Lines, Number + 1, [Name | Names]);
                error -> {error, Number, Trimmed}
            end
    end.

%% (string:trim/1 wants UTF-8, which the file need not hold.)
trim(Text) ->
    re:replace(Text, "^[ \\t]+|[ \\t\\r]+$", "", [global, {return, binary}]).
