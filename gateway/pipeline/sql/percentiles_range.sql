-- How long it took, over all hours of `rollups`: the sketches of the hours, merged. Milliseconds.
SELECT
  route,
  kind,
  events,
  octets,
  kll_sketch_get_quantile_double(latency, 0.00D)  AS latency_min,
  kll_sketch_get_quantile_double(latency, 0.50D)  AS p50,
  kll_sketch_get_quantile_double(latency, 0.95D)  AS p95,
  kll_sketch_get_quantile_double(latency, 0.99D)  AS p99,
  kll_sketch_get_quantile_double(latency, 1.00D)  AS latency_max
FROM (
  SELECT
    route,
    kind,
    sum(events)                    AS events,
    sum(octets)                    AS octets,
    kll_merge_agg_double(latency)  AS latency
  FROM rollups
  WHERE timed > 0
  GROUP BY route, kind
)
ORDER BY route, kind
