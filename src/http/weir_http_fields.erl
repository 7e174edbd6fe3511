%% @doc The response fields that tell a client of its limit: `RateLimit' and `RateLimit-Policy' as
%% draft-ietf-httpapi-ratelimit-headers-11 writes them, and `Retry-After' (RFC 9110). Pure.
%%
%% ```
%% RateLimit-Policy: "login";q=5;w=60
%% RateLimit: "login";r=3;t=12
%% Retry-After: 12
%% '''
%%
%% A token bucket has no windows, so the parameters are given these meanings:
%%
%% - `q', the quota, is the capacity of the bucket: most that can be had at once.
%% - `w', its window, is the time in which an empty bucket fills, rounded up to seconds. Thus q/w is the rate.
%% - `r', the available quota, is what remains.
%% - `t', the effective window, is the time in which the client can have no more than r: until the next token, rounded up
%%   to seconds. A client that keeps to r within t gets all that the limiter allows. It is left out of an answer that does
%%   not know it: for a full bucket, and when the answer is the limiter's `on_error'.
%%
%% `Retry-After' goes with a denial that ends, in seconds rounded up, so never too early; a request above the capacity is
%% denied for ever and has none. It never lies before the end of t (section 6 of the draft).
-module(weir_http_fields).

-export([policy/2, fields/2, name/1]).

-export_type([policy/0, answer/0]).

%% Made once for a limiter: `tokens' come in `unit_ms'; the texts are ready to send.
-opaque policy() :: #{tokens := pos_integer(), unit_ms := pos_integer(), name := binary(), field := binary()}.

%% As `weir:decide/3' answers.
-type answer() :: #{allowed := boolean(), limit := pos_integer(), remaining := non_neg_integer(),
                    reset_ms := non_neg_integer(), retry_ms := non_neg_integer() | infinity, reason => weir_nif:reason()}.

%% A structured field's Integer has 15 digits at most (RFC 9651, section 3.3.1).
-define(MAX_INTEGER, 999999999999999).

%% @doc What the fields of a limiter need, from its name and its specification.
-spec policy(binary(), #{rate := term(), burst => pos_integer(), _ => _}) -> policy().
policy(Limiter, #{rate := {Tokens, Unit}} = Spec) ->
    Burst = maps:get(burst, Spec, Tokens),
    UnitMs = unit_ms(Unit),
    Name = name(Limiter),
    Window = max(1, ceiling(Burst * UnitMs, Tokens * 1000)),
    Field = iolist_to_binary([Name, ";q=", integer(Burst), ";w=", integer(Window)]),
    #{tokens => Tokens, unit_ms => UnitMs, name => Name, field => Field}.

%% @doc The fields of one answer, for cowboy.
-spec fields(policy(), answer()) -> #{binary() => iodata()}.
fields(#{name := Name, field := Policy} = Rate, #{remaining := Remaining} = Answer) ->
    Retry = retry_after(Answer),
    Window = window(Answer, next_token(Rate, Answer), Retry),
    Limit = [Name, ";r=", integer(Remaining), Window],
    with_retry(Retry, #{<<"ratelimit-policy">> => Policy, <<"ratelimit">> => Limit}).

retry_after(#{allowed := false, retry_ms := Ms}) when is_integer(Ms) -> ceiling(Ms, 1000);
retry_after(_) -> none.

with_retry(none, Fields) -> Fields;
with_retry(Seconds, Fields) -> Fields#{<<"retry-after">> => integer_to_binary(Seconds)}.

%% Level tokens leave the bucket one by one, the last of them in reset_ms: the first one (level - 1) intervals earlier.
next_token(#{tokens := Tokens, unit_ms := UnitMs}, #{limit := Limit, remaining := Remaining, reset_ms := ResetMs}) ->
    Level = Limit - Remaining,
    ceiling(ResetMs * Tokens - (Level - 1) * UnitMs, Tokens * 1000).

window(#{limit := Full, remaining := Full}, _Seconds, _Retry) -> [];
window(_Answer, Seconds, _Retry) when Seconds =< 0 -> [];
window(_Answer, Seconds, none) -> [";t=", integer(Seconds)];
window(_Answer, Seconds, Retry) -> [";t=", integer(min(Seconds, Retry))].

%% @doc A limiter's name as a String of RFC 9651, quoted. Such strings are printable ASCII only: other bytes are written
%% `%XX', and so is `%' itself, as in the path of `/v1/limiters/{name}'.
-spec name(binary()) -> binary().
name(Limiter) ->
    <<$", (<< <<(character(C))/binary>> || <<C>> <= Limiter >>)/binary, $">>.

character($") -> <<"\\\"">>;
character($\\) -> <<"\\\\">>;
character(C) when C >= 16#20, C < 16#7F, C =/= $% -> <<C>>;
character(C) -> <<$%, (hex(C bsr 4)), (hex(C band 15))>>.

hex(N) when N < 10 -> $0 + N;
hex(N) -> $A + N - 10.

integer(N) -> integer_to_binary(min(N, ?MAX_INTEGER)).

ceiling(N, D) when N > 0 -> (N + D - 1) div D;
ceiling(N, D) -> N div D.

unit_ms(second) -> 1000;
unit_ms(minute) -> 60000;
unit_ms(hour) -> 3600000;
unit_ms(day) -> 86400000;
unit_ms({K, Unit}) -> K * unit_ms(Unit).
