-- Rows of the same hour, route, version and kind as one: what an hour had, and what came to it since.
SELECT
  hour,
  route,
  version,
  kind,
  events,
  octets,
  kll_sketch_get_n_double(latency)  AS timed,
  latency
FROM (
  SELECT
    hour,
    route,
    version,
    kind,
    sum(events)                    AS events,
    sum(octets)                    AS octets,
    kll_merge_agg_double(latency)  AS latency
  FROM rollups
  GROUP BY hour, route, version, kind
)
