-- The bids of an auction while it is open, the highest of them, and of these the mean of each category.
-- The last condition of the join says nothing new: it is one that Spark lets go of state by.
SELECT category, sum(final) AS total, count(*) AS auctions,
       unix_millis(window(date_time, '10 seconds').end) AS until
FROM (
    SELECT id, category, date_time, max(price) AS final
    FROM (
        SELECT a.id, a.category, a.date_time, b.price
        FROM {auction} a JOIN {bid} b
        ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
            AND b.date_time <= a.date_time + {longest_ms} * INTERVAL '0.001' SECOND
    )
    GROUP BY id, category, date_time
)
GROUP BY category, window(date_time, '10 seconds')
