%% @private
%% @doc Where a limiter's specification comes from, and which of two counts. Pure.
%%
%% Nodes hold entries: a specification (or a deletion), its version, and its source. Two entries of one limiter are
%% merged, on all nodes to the same one:
%%
%% - a change by a call (`put', also a deletion) counts more than a configuration; of two changes the greater version;
%% - of two configurations that with the greater `config_version' counts (0: none was given), then that of the node
%%   that started last, then that of the greater name.
%%
%% The machines need a version that grows whenever the specification changes, and nodes of older releases know nothing
%% but the version. So where the entry that counts has the smaller version, it gets a greater one than both had.
%%
%% A node of an older release tells no source, and may repeat what others overruled. So where a source is unknown the
%% greater version counts, as it does there. One exception: what is of counter 0 comes from a configuration, and counts
%% less than any configuration whose source is known.
-module(weir_source).

-export([version/2, next/2, merge/2, configured/3, put/2, started/1, is_source/1, map/1, text/1, why/2]).

-export_type([source/0, entry/0, what/0, version/0, shown/0]).

-type version() :: pos_integer().
-type ms() :: non_neg_integer().
%% Names of nodes are binaries: nothing from outside becomes an atom.
-type source() :: {put, Node :: binary(), AtMs :: ms()}
                | {configured, ConfigVersion :: non_neg_integer(), StartedMs :: ms(), Node :: binary()}
                | unknown.
-type what() :: weir_limiter:spec() | {deleted, AtMs :: ms()}.
-type entry() :: {Name :: binary(), what(), version(), source()}.
%% `at_ms' is Unix time: of the call, or of the node's start.
-type shown() :: #{by := put | configured | unknown, node => binary(), at_ms => ms(), config_version => pos_integer()}.

%% The counter's unit in a version, which has 32 bits: a million changes of one name.
-define(CHANGE, 4096).
-define(MAX_VERSION, 16#ffffffff).
-define(MAX_NUMBER, (1 bsl 60)).
-define(MAX_NODE_BYTES, 1024).

-spec configured(ConfigVersion :: non_neg_integer(), StartedMs :: ms(), node()) -> source().
configured(ConfigVersion, StartedMs, Node) ->
    {configured, ConfigVersion, StartedMs, atom_to_binary(Node)}.

-spec put(node(), AtMs :: ms()) -> source().
put(Node, AtMs) ->
    {put, atom_to_binary(Node), AtMs}.

%% A configuration's time of start; 0 of what is none.
-spec started(source()) -> ms().
started({configured, _, StartedMs, _}) -> StartedMs;
started(_) -> 0.

%% Is this a source that another node may tell?
-spec is_source(term()) -> boolean().
is_source({put, Node, AtMs}) ->
    is_node(Node) andalso is_number_of(AtMs);
is_source({configured, ConfigVersion, StartedMs, Node}) ->
    is_node(Node) andalso is_number_of(ConfigVersion) andalso is_number_of(StartedMs);
is_source(_) ->
    false.

is_node(Node) -> is_binary(Node) andalso byte_size(Node) =< ?MAX_NODE_BYTES.

is_number_of(N) -> is_integer(N) andalso N >= 0 andalso N =< ?MAX_NUMBER.

%% A counter, which each change raises, and a hash: so two changes at the same time differ, and one that is made on
%% several nodes doesn't.
-spec version(Counter :: non_neg_integer(), what()) -> version().
version(Counter, {deleted, _}) -> Counter * ?CHANGE + 1;
version(Counter, Spec) -> Counter * ?CHANGE + 1 + erlang:phash2(Spec, ?CHANGE - 1).

%% The version of this change of what had that version; `none' when a million changes are used up.
-spec next(version(), what()) -> version() | none.
next(Version, _What) when Version > ?MAX_VERSION - ?CHANGE -> none;
next(Version, What) -> version(Version div ?CHANGE + 1, What).

%% The entry that counts. Any two nodes that have merged the same entries, in any order and as often as they like, and
%% then each other's results, have the same.
-spec merge(entry(), entry()) -> entry().
merge({Name, What1, Version, Source1} = One, {Name, What2, Version, Source2} = Two) ->
    case same(What1, What2) of
        true -> {Name, What1, Version, max_source(Source1, Source2)};
        false -> counts(One, Two)
    end;
merge(One, Two) ->
    counts(One, Two).

counts(One, Two) ->
    case beats(One, Two) of
        true -> above(One, Two);
        false -> above(Two, One)
    end.

beats({_, _, V, unknown}, {_, _, _, {configured, _, _, _}}) when V =< ?CHANGE -> false;
beats({_, _, _, {configured, _, _, _}}, {_, _, V, unknown}) when V =< ?CHANGE -> true;
beats({_, What, V, Source}, {_, Other, W, Against}) when Source =:= unknown; Against =:= unknown -> {V, What} > {W, Other};
beats(One, Two) -> order(One) > order(Two).

above({_, _, Version, _} = Winner, {_, _, Lower, _}) when Version > Lower ->
    Winner;
above({Name, What, _, Source}, {_, Other, Version, _}) ->
    case {same(What, Other), next(Version, What)} of
        {true, _} -> {Name, What, Version, Source};
        {false, none} -> {Name, What, ?MAX_VERSION, Source};
        {false, Next} -> {Name, What, Next, Source}
    end.

%% Two deletions are one.
same({deleted, _}, {deleted, _}) -> true;
same(One, Two) -> One =:= Two.

order({_, What, Version, {configured, ConfigVersion, StartedMs, Node}}) -> {0, ConfigVersion, StartedMs, Node, Version, What};
order({_, What, Version, {put, _, _}}) -> {1, 0, 0, <<>>, Version, What}.

%% What is known of one and the same change. (Of tuples the longer one is the greater, in Erlang.)
max_source(unknown, Known) -> Known;
max_source(Known, unknown) -> Known;
max_source({configured, _, _, _}, {put, _, _} = Put) -> Put;
max_source({put, _, _} = Put, {configured, _, _, _}) -> Put;
max_source(One, Two) -> max(One, Two).

%% ---- for people ----

-spec map(source()) -> shown().
map({put, Node, AtMs}) -> #{by => put, node => Node, at_ms => AtMs};
map({configured, 0, StartedMs, Node}) -> #{by => configured, node => Node, at_ms => StartedMs};
map({configured, ConfigVersion, StartedMs, Node}) -> (map({configured, 0, StartedMs, Node}))#{config_version => ConfigVersion};
map(unknown) -> #{by => unknown}.

-spec text(source()) -> binary().
text({put, Node, AtMs}) -> weir_error:sentence("a change on ~ts at ~s", [Node, time(AtMs)]);
text({configured, 0, StartedMs, Node}) -> weir_error:sentence("the configuration of ~ts, started at ~s", [Node, time(StartedMs)]);
text({configured, ConfigVersion, StartedMs, Node}) ->
    weir_error:sentence("the configuration of ~ts, started at ~s, config_version ~b", [Node, time(StartedMs), ConfigVersion]);
text(unknown) -> <<"a node of an older release, which doesn't tell where it comes from">>.

%% Why the first counts and the second doesn't.
-spec why(source(), source()) -> binary().
why({configured, One, _, _}, {configured, Two, _, _}) when One > Two -> <<"it has the greater config_version">>;
why({configured, _, One, _}, {configured, _, Two, _}) when One > Two -> <<"that node started last">>;
why({configured, _, _, _}, {configured, _, _, _}) ->
    <<"of two nodes that started in the same millisecond the greater name counts">>;
why({configured, _, _, _}, _) -> <<"that node started last">>;
why(_, _) -> <<"what is changed while weir runs counts more than a configuration">>.

%% A year that a calendar can't have is printed as it was told.
time(Ms) ->
    try calendar:system_time_to_rfc3339(Ms, [{unit, millisecond}, {offset, "Z"}])
    catch error:_ -> integer_to_list(Ms)
    end.
