SELECT unix_date(to_date(date_time)) AS day, count(*) AS bids, count_if(price < 10000) AS low,
       count_if(price >= 10000 AND price < 1000000) AS middle, count_if(price >= 1000000) AS high
FROM {bid}
GROUP BY to_date(date_time)
