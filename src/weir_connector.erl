%% @private
%% @doc Connects to members that are out of reach, again and again, so that a partition heals without anybody's doing.
%%
%% Each is tried from one to thirty seconds after the last attempt, later and later, and never at the same moment as the other side
%% tries. One attempt a node at a time, each in a process of its own: the connecting may wait.
-module(weir_connector).

-behaviour(gen_server).

-export([start_link/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(LOOK_MS, 250).
-define(MIN_PAUSE_MS, 1000).
-define(MAX_PAUSE_MS, 30000).

%% Of each node that is out of reach: how often it was tried, and when it is next (monotonic milliseconds).
-record(state, {tries = #{} :: #{node() => {non_neg_integer(), integer()}}, attempts = #{} :: #{reference() => node()}}).

-spec start_link() -> {ok, pid()} | {error, term()}.
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-spec init([]) -> {ok, #state{}}.
init([]) ->
    {ok, look(#state{})}.

-spec handle_call(term(), gen_server:from(), #state{}) -> {reply, unknown, #state{}}.
handle_call(_, _From, State) ->
    {reply, unknown, State}.

-spec handle_cast(term(), #state{}) -> {noreply, #state{}}.
handle_cast(_, State) ->
    {noreply, State}.

-spec handle_info(term(), #state{}) -> {noreply, #state{}}.
handle_info(look, State) ->
    {noreply, look(State)};
handle_info({'DOWN', Monitor, process, _, _}, #state{attempts = Attempts} = State) ->
    {noreply, State#state{attempts = maps:remove(Monitor, Attempts)}};
handle_info(_, State) ->
    {noreply, State}.

%% What is connected, or isn't looked for any more, begins anew when it is.
look(#state{tries = Tries} = State) ->
    _ = erlang:send_after(?LOOK_MS, self(), look),
    Now = erlang:monotonic_time(millisecond),
    Up = maps:from_list([{Node, up} || Node <- nodes()]),
    Out = [Node || Node <- weir_roster:looked_for(), not is_map_key(Node, Up)],
    Waiting = maps:from_list([{Node, maps:get(Node, Tries, {0, pause(0, Now)})} || Node <- Out]),
    maps:fold(fun(Node, {Failed, At}, S) when At =< Now -> try_once(Node, Failed, Now, S);
                 (_, _, S) -> S
              end, State#state{tries = Waiting}, Waiting).

try_once(Node, Failed, Now, #state{tries = Tries, attempts = Attempts} = State) ->
    case lists:member(Node, maps:values(Attempts)) of
        true ->
            State;
        false ->
            {_, Monitor} = spawn_monitor(fun() -> net_kernel:connect_node(Node) end),
            State#state{tries = Tries#{Node => {Failed + 1, pause(Failed + 1, Now)}}, attempts = Attempts#{Monitor => Node}}
    end.

pause(Failed, Now) ->
    Pause = min(?MAX_PAUSE_MS, ?MIN_PAUSE_MS bsl min(Failed, 5)),
    Now + Pause div 2 + rand:uniform(Pause).
