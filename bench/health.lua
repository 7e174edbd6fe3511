-- wrk: GET /healthz, what cowboy costs without a decision. The last line printed is for bench_http.erl.
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d %d\n", summary.requests, summary.duration,
    errors.connect + errors.read + errors.write + errors.timeout + errors.status,
    latency:percentile(50), latency:percentile(99), latency.max))
end
