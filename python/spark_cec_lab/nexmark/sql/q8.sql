SELECT p.id, p.name, unix_millis(p.w.end) AS until
FROM (
    SELECT id, name, window(date_time, '10 seconds') AS w
    FROM {person}
    GROUP BY id, name, window(date_time, '10 seconds')
) p
JOIN (
    SELECT seller, window(date_time, '10 seconds') AS w
    FROM {auction}
    GROUP BY seller, window(date_time, '10 seconds')
) a
ON p.id = a.seller AND p.w = a.w
