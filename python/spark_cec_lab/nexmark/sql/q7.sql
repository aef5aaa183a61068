SELECT unix_millis(window(date_time, '10 seconds').end) AS until, max(struct(price, bidder, auction)) AS best
FROM {bid}
GROUP BY window(date_time, '10 seconds')
