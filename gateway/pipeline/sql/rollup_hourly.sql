-- Hour and group of like events: how many, octets of their bodies, and how long it took since the message came.
-- `events` is a view with `hour` (hours since 1970), `grp` (a number that stands for kind, version and route), `ref` (a
-- number that stands for the event), `size`, and `latency` in milliseconds, NULL unless the event ends something.
SELECT
  hour,
  grp,
  min(ref)                        AS ref,
  count(*)                        AS events,
  coalesce(sum(size), 0L)         AS octets,
  kll_sketch_agg_double(latency)  AS latency
FROM events
GROUP BY hour, grp
