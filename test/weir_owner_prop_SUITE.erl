%% Exactness and liveness of owners under schedules of joins, leaves, deaths, pauses and cuts in simulated time (weir_owner_laws).
%% Shows R56 of doc/requirements.md.
%%
%% WEIR_CASES sets the number of cases of each property (default 200).
-module(weir_owner_prop_SUITE).

-include_lib("stdlib/include/assert.hrl").

-compile([export_all, nowarn_export_all]).

suite() ->
    [{timetrap, {hours, 1}}].

all() ->
    [schedules_that_once_failed, never_above_c_by_changes, never_above_c_by_pauses, above_c_by_what_was_under_way, bounded_by_faults].

%% ---- schedules that broke a law before the owners were mended

schedules_that_once_failed(_) ->
    [?assert(weir_owner_laws:holds(Law, weir_owner_laws:run(Setting#{law => Law}, Commands)), Name)
     || {Name, Law, Setting, Commands} <- schedules()].

schedules() ->
    [{"a node that leaves isn't kept by those that it has said bye to",
      faults, #{nodes => 2, delay => 100, seed => 7},
      [join, {pause, 1, 2600}, {kill, 3}, {leave, 1}, join, join, join, {wait, 1}, {wait, 1}, {ask, 4, 2, 1}, join, {wait, 5},
       {burst, 1, 2}]}].

%% ---- properties

never_above_c_by_changes(_) -> holds(weir_owner_laws:prop_changes()).
never_above_c_by_pauses(_) -> holds(weir_owner_laws:prop_pauses()).
above_c_by_what_was_under_way(_) -> holds(weir_owner_laws:prop_deaths()).
bounded_by_faults(_) -> holds(weir_owner_laws:prop_faults()).

holds(Property) ->
    weir_test:holds(Property, [{numtests, 200}]).
