SELECT bidder, count(*) AS bids, unix_millis(window(date_time, '10 seconds').end) AS until
FROM {bid}
GROUP BY bidder, window(date_time, '10 seconds')
