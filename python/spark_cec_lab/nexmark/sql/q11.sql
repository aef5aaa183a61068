SELECT bidder, count(*) AS bids, unix_millis(session_window(date_time, '2 seconds').start) AS since,
       unix_millis(session_window(date_time, '2 seconds').end) AS until
FROM {bid}
GROUP BY bidder, session_window(date_time, '2 seconds')
