-- wrk's script: POST one chat completion of about 1 KB, over and over. MODEL, KEY and STREAM come from the environment;
-- DELAY_MS, where it is set, is the pause before each request of a connection.
local question = string.rep("Which of these three incidents needs a person tonight, and why? ", 12)
local streamed = os.getenv("STREAM") == "1" and ',"stream":true,"stream_options":{"include_usage":true}' or ""

wrk.method = "POST"
wrk.path = "/v1/chat/completions"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer " .. os.getenv("KEY")
wrk.body = '{"model":"' .. os.getenv("MODEL") .. '","messages":[{"role":"system","content":"Answer briefly."},'
  .. '{"role":"user","content":"' .. question .. '"}],"temperature":0.3,"max_tokens":200,"user":"bench"' .. streamed .. "}"

local pause = os.getenv("DELAY_MS")
if pause then
  function delay() return tonumber(pause) end
end

function done(summary, latency)
  local errors = summary.errors
  print(string.format(
    '{"answered":%d,"took_us":%d,"refused":%d,"broken":%d,"p50_us":%d,"p99_us":%d}',
    summary.requests, summary.duration, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout, latency:percentile(50), latency:percentile(99)))
end
