SELECT auction, bidder, price, length(extra) - length(replace(extra, 'c', '')) AS cs,
       CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'day'
            WHEN hour(date_time) BETWEEN 6 AND 20 THEN 'twilight'
            ELSE 'night' END AS light
FROM {bid}
WHERE price > 1000000 AND price < 50000000
