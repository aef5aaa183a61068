SELECT bidder, auction, max(struct(unix_millis(date_time) AS at, price, channel)) AS last
FROM {bid}
GROUP BY bidder, auction
