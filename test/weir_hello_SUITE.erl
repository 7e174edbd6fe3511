%% What a hello may be at most. (What becomes of one is in weir_members_SUITE.)
%% Shows R57 of doc/requirements.md, beside weir_members_SUITE.
-module(weir_hello_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

all() ->
    [terms_have_bounds, hellos_have_bounds].

terms_have_bounds(_) ->
    Good = #{versions => {1, 2}, token => <<1:64>>, features => [<<"x">>]},
    Terms = fun(What) -> element(1, weir_hello:terms(1, maps:merge(Good, What))) end,
    [?assertEqual({What, ok}, {What, Terms(What)})
     || What <- [#{}, #{features => []}, #{features => [binary:copy(<<"f">>, 64)]}, #{features => lists:duplicate(64, <<"f">>)},
                 #{versions => {2, 16#ffff}}]],
    [?assertEqual({What, refused}, {What, Terms(What)})
     || What <- [#{features => [binary:copy(<<"f">>, 65)]}, #{features => lists:duplicate(65, <<"f">>)}, #{features => [<<"f">> | f]},
                 #{features => [f]}, #{token => none}, #{token => <<1:56>>}, #{token => <<1:72>>}, #{token => 1},
                 #{versions => {0, 2}}, #{versions => {2, 1}}, #{versions => {1, 16#10000}}, #{versions => {1.0, 2}}]].

hellos_have_bounds(_) ->
    Own = #{id => 5, secret => <<1:64>>, before => none, next => fun() -> none end, alone => false, same => none, incarnation => 7},
    Good = #{id => 5, incarnation => 7, secret => <<1:64>>, yours => 0, members => [], left => []},
    Most = 1 bsl 62 - 1,
    [?assertEqual({What, ok}, {What, weir_hello:judge(maps:merge(Good, What), Own)})
     || What <- [#{}, #{incarnation => Most}, #{yours => Most}, #{members => lists:duplicate(4096, {a@b, 0})}]],
    [?assertEqual({What, {refused, malformed}}, {What, weir_hello:judge(maps:merge(Good, What), Own)})
     || What <- [#{incarnation => Most + 1}, #{incarnation => -1}, #{incarnation => 7.0}, #{yours => Most + 1}, #{yours => -1},
                 #{members => lists:duplicate(4097, {a@b, 0})}, #{members => [a | b]}, #{left => [a | b]}, #{left => none}]].
