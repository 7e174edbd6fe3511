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
    [never_above_c_by_changes, never_above_c_by_pauses, above_c_by_what_was_under_way, bounded_by_faults].

never_above_c_by_changes(_) -> holds(weir_owner_laws:prop_changes()).
never_above_c_by_pauses(_) -> holds(weir_owner_laws:prop_pauses()).
above_c_by_what_was_under_way(_) -> holds(weir_owner_laws:prop_deaths()).
bounded_by_faults(_) -> holds(weir_owner_laws:prop_faults()).

holds(Property) ->
    Cases = list_to_integer(os:getenv("WEIR_CASES", "200")),
    Print = fun(Format, Args) -> io:format(Format, Args) end,
    ?assertEqual(true, proper:quickcheck(Property, [{numtests, Cases}, {on_output, Print}])).
