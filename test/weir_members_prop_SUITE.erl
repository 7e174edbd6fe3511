%% The laws of membership under schedules of starts, ends, cuts, clocks that are set back and rotations, in simulated time
%% (weir_members_laws). Shows R67 of doc/requirements.md.
%%
%% WEIR_CASES sets the number of cases of the property (default 300).
-module(weir_members_prop_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

suite() ->
    [{timetrap, {hours, 2}}].

all() ->
    [schedules_that_once_failed, members_keep_the_laws, what_is_answered, refused_while_connected, names_are_few].

%% ---- schedules that broke a law before the rules were mended

schedules_that_once_failed(_) ->
    [?assertEqual({Name, []}, {Name, weir_members_laws:broken(weir_members_laws:run(Setting, Commands))})
     || {Name, Setting, Commands} <- schedules()].

schedules() ->
    [{"who missed a node's farewell is told when it greets that node",
      #{nodes => 2, delay => 0, seed => 1}, [{restart, 1, app, 0}, {start, 3}, {isolate, 2}, {restart, 2, app, -100000}, {leave, 1}]},
     {"a run that met nodes that were ready copies their state, also when the process was killed meanwhile",
      #{nodes => 2, delay => 0, seed => 1}, [{end_app, 1}, {start, 1}, {kill, 1, 5}, {wait, 1}]},
     {"two runs that are told of the same run before them by different nodes don't take the same number",
      #{nodes => 3, delay => 20, seed => 1},
      [{crash, 3}, {cut, 2, 3}, {clock, 3, -100000}, {start, 3}, {wait, 4000}, {crash, 3}, heal, {wait, 4000}, {cut, 1, 3}, {start, 3},
       {wait, 4000}, heal]},
     {"a node that is back with a run before, and has switched to the next secret, hears of the later run",
      #{nodes => 2, delay => 0, seed => 1}, [{cut, 1, 2}, {stop, 2, app}, {clock, 2, -100000}, {start, 2}, {rotate, 2}]},
     {"two nodes of which one refuses and the other has a later run of it don't greet each other without end",
      #{nodes => 2, delay => 0, seed => 1}, [{clock, 1, -100000}, {start, 6}, {wait, 1}, {start, 5}, {end_app, 2}, {crash, 1}, {start, 1}]},
     {"a node that was only heard of doesn't become a member by its farewell",
      #{nodes => 2, delay => 0, seed => 1}, [{start, 5}, {wait, 1}, {start, 3}, {kill, 1, now}, {start, 6}, {wait, 1}, {stop, 5, app}]},
     {"each is greeted in turn",
      #{nodes => 2, delay => 1, seed => 3},
      [{start, 3}, {kill, 1, now}, {wait, 900}, {start, 5}, {kill, 5, now}, {wait, 1}, {wait, 200}, {kill, 2, 4}, {leave, 2}]},
     {"a call that waited for the end of the start is answered after what the message that ended it has changed",
      #{nodes => 2, delay => 20, seed => 4}, [{wait, 4000}, {start, 6}, {forget, 6, 2}, {wait, 200}, {crash, 2}]},
     {"a farewell of a run that isn't the latest one known is said again as that of a later one",
      #{nodes => 4, delay => 100, seed => 1},
      [{crash, 1}, {cut, 1, 2}, {restart, 1, app, 0}, {isolate, 2}, {crash, 4}, {isolate, 2}, {restart, 2, app, -100000}, {isolate, 2},
       {restart, 2, app, -100000}, {wait, 1500}, {rotate, 2}, {isolate, 1}, {restart, 1, vm, -100000}, {wait, 1500}, {rotate, 1},
       {restart, 4, app, 0}, heal, {isolate, 2}, {restart, 2, app, -100000}, {wait, 1500}, {rotate, 2}, {restart, 4, app, 0},
       {restart, 3, app, -100000}, {leave, 3}]}].

%% ---- the property

members_keep_the_laws(_) ->
    weir_test:holds(weir_members_laws:prop_laws()).

%% ---- one node

%% A hello that isn't taken is answered all the same: so both know how they stand. An answer isn't, or there would be no end of it.
what_is_answered(_) ->
    A = 'a@members.laws',
    {_, Met, _} = step(hello(A, #{incarnation => 1000}), started([A])),
    Said = fun(Kind, Told, Core) ->
                   {told, hello, 1, Hello, none} = hello(A, Told),
                   {_, _, Effects} = step({told, Kind, 1, Hello, none}, {[A], Core, []}),
                   [{How, maps:with([incarnation, yours], Answer)} || {say, How, Node, Answer} <- Effects, Node =:= A]
           end,
    #{incarnation := Run} = hd([Told || {say, welcome, _, Told} <- element(3, step(hello(A, #{}), started([A])))]),
    [?assertEqual({Kind, Told, Answers}, {Kind, Told, Said(Kind, Told, Met)})
     || {Kind, Told, Answers} <- [{hello, #{incarnation => 1001}, [{welcome, #{incarnation => Run, yours => 1001}}]},
                                  {welcome, #{incarnation => 1001}, []},
                                  {hello, #{incarnation => 999}, [{hello, #{incarnation => Run, yours => 1000}}]},
                                  {welcome, #{incarnation => 999}, []},
                                  {hello, #{secret => <<1:64>>}, [{welcome, #{incarnation => Run, yours => 1000}}]},
                                  {welcome, #{secret => <<1:64>>}, []},
                                  {hello, #{versions => {8, 9}}, [{welcome, #{incarnation => Run, yours => 1000}}]},
                                  {bye, #{incarnation => 1000}, []}]],
    %% Its end may be heard of when the next process there has said hello already.
    {_, _, Ended} = step({down, A}, {[A], Met, []}),
    ?assertMatch([#{yours := 1000}], [Answer || {say, hello, Node, Answer} <- Ended, Node =:= A]),
    {_, Left, _} = step({call, {self(), tag}, {leave, bye}}, {[A], Met, []}),
    ?assertEqual([{bye, #{incarnation => Run, yours => 0}}], Said(hello, #{incarnation => 1000}, Left)),
    ?assertEqual([], Said(welcome, #{incarnation => 1000}, Left)),
    %% It is known by a later run there: the farewell is of one that is later still.
    ?assertMatch([{bye, #{incarnation := Later}}] when Later > Run + 50, Said(hello, #{incarnation => 1000, yours => Run + 50}, Left)).

%% (An operator is not to see names of long ago.)
refused_while_connected(_) ->
    A = 'a@members.laws',
    {_, Refused, Effects} = step(hello(A, #{secret => <<1:64>>}), started([A])),
    ?assert(lists:member({put, [{{refused, A}, secret}]}, Effects)),
    {_, Still, Kept} = step(check, {[A], Refused, []}),
    ?assertNot(lists:member({delete, {refused, A}}, Kept)),
    {_, _, Gone} = step(check, {[], Still, []}),
    ?assert(lists:member({delete, {refused, A}}, Gone)).

%% ---- what others can make a node remember

%% Three members make up 4096 names each, as they do every time, and then say that these have left. Names are not in any order.
names_are_few(_) ->
    Others = ['a@members.laws', 'b@members.laws', 'c@members.laws'],
    Step = fun(Message, {Core, Table}) ->
                   {_, New, Effects} = step(Message, {Others, Core, []}),
                   {New, lists:foldl(fun in_table/2, Table, Effects)}
           end,
    {_, Started, _} = started(Others),
    Heard = lists:foldl(Step, {Started, #{}}, [hello(By, #{members => [{Name, 0} || Name <- made_up(By, 4096)]}) || By <- Others]),
    ?assertEqual(8192 + 1, count(member, Heard)),
    Left = lists:foldl(Step, Heard, [hello(By, #{left => [{Name, 7} || Name <- made_up(By, 1024)]}) || By <- Others]),
    ?assertEqual(1024, count(left, Left)).

started(Others) ->
    Rows = [{secret, <<0:64>>}, {before, none}, {phase, starting}, {node, 'self@members.laws'}],
    Core = weir_members_core:new(Rows, #{forget_after => 3600000}),
    lists:foldl(fun step/2, {Others, Core, []}, [start, started, introduced]).

%% What one message brings.
step(Message, {Others, Core, _}) ->
    Seen = #{now => 0, clock => 5000, node => 'self@members.laws', up => Others},
    {New, Effects} = weir_members_core:handle(Message, Seen, Core),
    {Others, New, Effects}.

hello(Node, Told) ->
    {told, hello, 1, maps:merge(#{node => Node, id => weir_members:node_id(Node), incarnation => 1, secret => <<0:64>>, before => none, yours => 0,
                                  members => [], left => [], versions => weir_hello:versions(), token => <<0:64>>}, Told), none}.

made_up(By, Count) ->
    [list_to_atom("name" ++ integer_to_list(I) ++ "." ++ atom_to_list(By)) || I <- lists:seq(1, Count)].

in_table({put, Rows}, Table) -> lists:foldl(fun(Row, All) -> All#{element(1, Row) => Row} end, Table, Rows);
in_table({delete, Key}, Table) -> maps:remove(Key, Table);
in_table(_, Table) -> Table.

count(Kind, {_, Table}) -> length([x || {K, _} <- maps:keys(Table), K =:= Kind]).
