SELECT auction, unix_date(to_date(date_time)) AS day, count(*) AS bids, count_if(price < 10000) AS low,
       count_if(price >= 10000 AND price < 1000000) AS middle, count_if(price >= 1000000) AS high,
       min(price) AS least, max(price) AS most, sum(price) AS total
FROM {bid}
GROUP BY auction, to_date(date_time)
