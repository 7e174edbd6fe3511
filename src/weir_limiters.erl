%% @private
%% @doc Changes this node's limiters: their specifications (weir_specs), and what they are in the NIF. Knows no other nodes.
%%
%% Called by weir_registry alone, for one change at a time.
-module(weir_limiters).

-include_lib("kernel/include/logger.hrl").

-export([settle/0, forget/1]).
-export([put/3, delete/1, compile/2, handle/1, configure/4, configured/3, with_own/1, take/3, advise/3]).

-define(MILLION, <<"this limiter was changed a million times, which is the most: give it another name">>).

-type row() :: weir_specs:row().
-type result() :: ok | {error, Message :: binary()}.

%% A tombstone that has done its duty.
-spec forget(binary()) -> ok.
forget(Name) ->
    ok = weir_specs:delete(Name),
    weir_replica:put_limiter(Name).

%% A crash may have come between a change in the NIF and its entry in the table: what the table says was promised, the rest
%% undone.
-spec settle() -> ok.
settle() ->
    _ = [weir_nif:delete(Name) || {Name, _, _, _, _, _} <- weir_nif:stats(), weir_specs:spec(Name) =:= error,
                                  {ok, Name} =:= weir_limiter:name(Name)],
    _ = [put_nif(Name, Compiled, false) || {Name, #{} = Spec, _, _} <- weir_specs:rows(), {ok, Compiled} <- [weir_limiter:parse(Spec)]],
    ok.

%% ---- changes ----

%% By a call.
-spec put(weir_limiter:name(), Name :: binary(), weir_limiter:compiled()) -> result().
put(Given, Name, Compiled) ->
    changed(Given, Name, Compiled, weir_source:put(node(), erlang:system_time(millisecond))).

-spec delete(Name :: binary()) -> result() | unknown_limiter.
delete(Name) ->
    case weir_specs:row(Name) of
        {_, #{}, _, _} = Row -> deleted(Row);
        _ -> unknown_limiter
    end.

%% A policy without a name, for {@link weir:compile/1}.
-spec compile(Name :: binary(), weir_limiter:compiled()) -> result().
compile(Name, Compiled) ->
    put_nif(Name, Compiled, true).

-spec handle(Name :: binary()) -> reference() | unknown_limiter.
handle(Name) ->
    weir_nif:handle(Name).

%% This node's configuration at its start. (What was offered before a crash of weir_registry isn't offered again.)
-spec configured(weir_limiter:name(), Name :: binary(), weir_limiter:compiled()) -> result().
configured(Given, Name, Compiled) ->
    case weir_specs:configured(Name) of
        none -> offer(Given, Name, Compiled, source(weir_specs:started()));
        {_, Before} -> not_as_configured(weir_specs:row(Name), Compiled, Before)
    end.

%% The configuration of a child of somebody else's supervisor.
-spec configure(Alone :: boolean(), weir_limiter:name(), Name :: binary(), weir_limiter:compiled()) -> result().
configure(Alone, Given, Name, #{spec := Spec} = Compiled) ->
    Source = case weir_specs:configured(Name) of
                 {Spec, Before} -> Before;
                 _ -> source(later(Name))
             end,
    case Alone of
        true -> kept(changed(Given, Name, Compiled, Source), Name, Spec, Source);
        false -> offer(Given, Name, Compiled, Source)
    end.

source(StartedMs) ->
    weir_source:configured(weir_specs:config_version(), StartedMs, node()).

%% By a call, or by the configuration of a node that has no others. The same again is no change, on however many nodes it is
%% said; but said by a call it no longer gives way to a configuration.
changed(Name, Binary, #{spec := Spec} = Compiled, Source) ->
    Row = weir_specs:row(Binary),
    case Row of
        {_, Spec, Version, Had} ->
            New = case {Had, Source} of
                      {{put, _, _}, _} -> Row;
                      {_, {put, _, _}} -> {Binary, Spec, Version, Source};
                      _ -> Row
                  end,
            become(Name, Row, New, Compiled);
        {_, _, Version, _} ->
            case weir_source:next(Version, Spec) of
                none -> {error, ?MILLION};
                Next -> become(Name, Row, {Binary, Spec, Next, Source}, Compiled)
            end;
        none ->
            Counter = case Source of {put, _, _} -> 1; _ -> 0 end,
            become(Name, none, {Binary, Spec, weir_source:version(Counter, Spec), Source}, Compiled)
    end.

%% This node's configuration, among what else there is.
offer(Name, Binary, #{spec := Spec} = Compiled, Source) ->
    Row = weir_specs:row(Binary),
    Offered = {Binary, Spec, weir_source:version(0, Spec), Source},
    New = case Row of
              none -> Offered;
              _ -> weir_source:merge(Row, Offered)
          end,
    Result = case New of
                 {_, Spec, _, _} -> become_over(Name, Row, New, Compiled);
                 {_, #{} = Other, _, _} -> {ok, Counts} = weir_limiter:parse(Other), become(Name, Row, New, Counts);
                 _ -> become(Name, Row, New, Compiled)
             end,
    _ = Result =:= ok andalso not_as_configured(New, Compiled, Source),
    kept(Result, Binary, Spec, Source).

kept(ok, Name, Spec, Source) ->
    weir_specs:configure(Name, Spec, Source);
kept({error, _} = Error, _Name, _Spec, _Source) ->
    Error.

%% When a child of somebody else's supervisor came with it: after all that is known of.
later(Name) ->
    Known = [weir_source:started(Source) || {_, _, _, Source} <- [weir_specs:row(Name)]]
        ++ [weir_source:started(Source) || {_, Source} <- [weir_specs:configured(Name)]],
    lists:max([erlang:system_time(millisecond), weir_specs:started() | [1 + Ms || Ms <- Known]]).

not_as_configured({_, Spec, _, _}, #{spec := Spec}, _Own) ->
    ok;
not_as_configured({Name, _, _, Source}, _Compiled, Own) ->
    ?LOG_WARNING(#{what => limiter_not_as_configured, limiter => Name, follows => weir_source:text(Source),
                   why => weir_source:why(Source, Own)});
not_as_configured(none, _Compiled, _Own) ->
    ok.

%% One entry takes the place of another.
become(Name, {Binary, What, Version, _} = Row, {Binary, What, Version, _} = New, _Compiled) ->
    _ = is_map(What) andalso is_atom(Name) andalso weir_nif:alias(Name, Binary),
    _ = New =/= Row andalso weir_specs:insert(New),
    ok;
become(_Name, Row, {Binary, {deleted, _}, _, _} = New, _Compiled) ->
    ok = weir_specs:unadvised(Binary),
    entered(Row, New);
become(Name, Row, {Binary, _, _, _} = New, Compiled) ->
    case put_nif(Binary, Compiled, false) of
        ok ->
            _ = is_atom(Name) andalso weir_nif:alias(Name, Binary),
            entered(Row, New);
        {error, _} = Error ->
            Error
    end.

entered(Row, {Name, What, _, _} = New) ->
    ok = weir_specs:insert(New),
    _ = is_tuple(What) andalso weir_nif:delete(Name),
    ok = log_followed(Row, New),
    weir_replica:put_limiter(Name).

%% What can't be changed in a limiter is otherwise in one that was deleted and made again elsewhere, or that another release of
%% a service configures. What this node has made itself since it started is left: one of its two configurations is wrong.
become_over(Name, Row, {Binary, _, _, _} = New, Compiled) ->
    case become(Name, Row, New, Compiled) of
        {error, _} = Error ->
            case Row =/= none andalso made_here(Row) of
                true -> Error;
                false ->
                    _ = weir_nif:delete(Binary),
                    become(Name, Row, New, Compiled)
            end;
        ok ->
            ok
    end.

made_here({_, _, _, {configured, _, StartedMs, Node}}) ->
    Node =:= atom_to_binary(node()) andalso StartedMs >= weir_specs:started();
made_here(_) ->
    false.

%% A change by a call of what was changed by a call is no news to whoever calls.
log_followed({Name, Old, _, Had}, {_, New, _, Source}) when Old =/= New ->
    case {kind(Had), kind(Source)} of
        {Kind, Other} when Kind =:= configured; Other =:= configured ->
            ?LOG_NOTICE(#{what => limiter_follows, limiter => Name, follows => weir_source:text(Source),
                          before => weir_source:text(Had), why => weir_source:why(Source, Had)});
        _ -> ok
    end;
log_followed(_, _) ->
    ok.

kind(unknown) -> unknown;
kind(Source) -> element(1, Source).

deleted({Name, _, Version, _} = Row) ->
    Now = erlang:system_time(millisecond),
    case weir_source:next(Version, {deleted, Now}) of
        none ->
            {error, ?MILLION};
        Next ->
            become(Name, Row, {Name, {deleted, Now}, Next, weir_source:put(node(), Now)}, none)
    end.

%% Said once of a limiter.
-spec advise(Name :: binary(), weir_limiter:compiled(), Nodes :: pos_integer()) -> ok | boolean().
advise(Name, #{spec := Spec}, Nodes) ->
    case weir_limiter:advice(Spec, Nodes) of
        none ->
            ok;
        Advice ->
            weir_specs:advised(Name)
                andalso ?LOG_NOTICE(#{what => limiter_small_for_its_nodes, limiter => Name, why => Advice})
    end.

%% ---- what other nodes told ----

%% What others told may have been taken for a change by a call until its source was known.
-spec with_own(row()) -> row().
with_own({Name, _, _, _} = Entry) ->
    case weir_specs:configured(Name) of
        {Spec, Source} -> weir_source:merge(Entry, {Name, Spec, weir_source:version(0, Spec), Source});
        none -> Entry
    end.

%% One that was told takes the place of what is here; without a specification it is deleted.
-spec take(row() | none, row(), weir_limiter:compiled() | none) -> result().
take(Row, {Name, _, _, _} = New, Compiled) ->
    case become(Name, Row, New, Compiled) of
        {error, _} ->
            _ = weir_nif:delete(Name),
            become(Name, Row, New, Compiled);
        ok ->
            ok
    end.

%% ---- the NIF ----

put_nif(Name, #{capacity := Capacity, interval_ns := IntervalNs, max_keys := MaxKeys, shadow := Shadow,
                on_error := OnError, spec := Spec} = Compiled, Transient) ->
    Replicated = case Spec of
                     #{scope := local} -> local;
                     #{partition := Partition} -> {weir_limiter:number(Name), Partition, weir_limiter:large_hits(Spec)}
                 end,
    case weir_nif:put(Name, Capacity, IntervalNs, MaxKeys, Shadow, OnError =:= deny, Transient, Replicated) of
        created ->
            ok;
        changed ->
            convert(Name);
        busy ->
            ok = convert(Name),
            put_nif(Name, Compiled, Transient);
        fixed ->
            {error, <<"max_keys and scope are chosen when a limiter is made: delete the limiter first, or keep them">>};
        same_number ->
            {error, <<"another limiter has the same number, a hash of its name: choose another name">>};
        too_many when Transient ->
            {error, <<"there are 16384 policies of weir:compile/1 in use already, which is the most: let go of some, "
                      "or give what many requests share a name with weir:put_limiter/2">>};
        too_many ->
            {error, <<"there are 16384 limiters already, which is the most: delete some first">>}
    end.

%% Carries the levels over, a few segments of the table at a time.
convert(Name) ->
    case weir_nif:convert(Name) of
        more -> convert(Name);
        done -> ok
    end.
