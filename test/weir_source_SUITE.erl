%% Rules of what nodes tell each other of limiters, one by one: which of two entries counts, and which aren't news.
%% Shows R53 of doc/requirements.md, beside weir_config_SUITE.
-module(weir_source_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

-import(weir_cluster, [call/4]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [a_configuration_counts_over_what_is_repeated, old_deletions_are_no_news].

end_per_testcase(_, _Config) ->
    weir_cluster:stop(weir_cluster_SUITE:erase_peers()).

%% A release that knows no sources repeats a configuration that was overruled: it doesn't count, however large its hash.
a_configuration_counts_over_what_is_repeated(_) ->
    [begin
         Known = {<<"login">>, spec(Here), weir_source:version(0, spec(Here)), {configured, 0, 1000, <<"a">>}},
         Repeated = {<<"login">>, spec(There), weir_source:version(0, spec(There)), unknown},
         Merged = weir_source:merge(Known, Repeated),
         ?assertEqual({spec(Here), {configured, 0, 1000, <<"a">>}}, {element(2, Merged), element(4, Merged)}),
         ?assertEqual(Merged, weir_source:merge(Repeated, Known)),
         ?assert(element(3, Merged) >= max(element(3, Known), element(3, Repeated)))
     end || Here <- lists:seq(1, 20), There <- lists:seq(1, 20), Here =/= There].

spec(N) -> #{rate => {N, hour}}.

%% Tombstones are forgotten after a day. One that another node still tells then is none.
old_deletions_are_no_news(_) ->
    [A, B] = weir_config_SUITE:start_all(2, #{}),
    Now = erlang:system_time(millisecond),
    weir_config_SUITE:told(B, A, [{<<"gone">>, {deleted, Now - 86400000 - 60000}, 5000},
                                  {<<"just gone">>, {deleted, Now - 60000}, 5000}]),
    ?assertEqual(none, call(A, weir_specs, entry, [<<"gone">>])),
    ?assertMatch({_, {deleted, _}, 5000}, call(A, weir_specs, entry, [<<"just gone">>])).
