SELECT auction, bidder, CAST(price AS DECIMAL(18, 0)) * 0.908 AS euros, unix_millis(date_time) AS at
FROM {bid}
