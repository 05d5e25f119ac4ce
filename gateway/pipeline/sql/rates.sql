-- Events and octets a second, by the hour and kind, and the share that each kind has of its hour.
SELECT
  timestamp_seconds(hour * 3600)                                AS hour,
  kind,
  sum(events)                                                   AS events,
  sum(events) / 3600D                                           AS events_a_second,
  sum(octets) / 3600D                                           AS octets_a_second,
  sum(events) * 1D / sum(sum(events)) OVER (PARTITION BY hour)  AS share
FROM rollups
GROUP BY hour, kind
ORDER BY hour, kind
