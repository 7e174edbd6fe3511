-- wrk: POST /v1/check over a thousand keys, each request made beforehand so that wrk's own work is small.
-- Arguments: how many items a request (1: an object, more: a list). The last line printed is for bench_http.erl.
local requests = {}
local next_request = 0

local function item(n)
  return string.format('{"limiter":"bench_http","key":"user:%d","hits":1}', n % 1000)
end

local function body(n, items)
  if items == 1 then return item(n) end
  local all = {}
  for i = 1, items do all[i] = item(n * items + i) end
  return "[" .. table.concat(all, ",") .. "]"
end

function init(args)
  local items = tonumber(args[1] or "1")
  for n = 1, 1000 do
    requests[n] = wrk.format("POST", "/v1/check", {["Content-Type"] = "application/json"}, body(n, items))
  end
end

function request()
  next_request = next_request % #requests + 1
  return requests[next_request]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d %d\n", summary.requests, summary.duration,
    errors.connect + errors.read + errors.write + errors.timeout + errors.status,
    latency:percentile(50), latency:percentile(99), latency.max))
end
