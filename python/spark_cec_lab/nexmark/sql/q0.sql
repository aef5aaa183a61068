SELECT auction, bidder, price, unix_millis(date_time) AS at
FROM {bid}
