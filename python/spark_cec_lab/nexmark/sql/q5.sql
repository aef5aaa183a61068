SELECT unix_millis(w.end) AS until, max(struct(bids, auction)) AS hottest
FROM (
    SELECT auction, count(*) AS bids, window(date_time, '10 seconds', '2 seconds') AS w
    FROM {bid}
    GROUP BY auction, window(date_time, '10 seconds', '2 seconds')
)
GROUP BY w
