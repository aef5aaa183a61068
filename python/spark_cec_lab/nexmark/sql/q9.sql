-- See q4.
SELECT id, unix_millis(date_time) AS until, max(struct(price, -bid_at AS sooner, bidder)) AS best
FROM (
    SELECT a.id, a.date_time, b.price, b.bidder, unix_millis(b.date_time) AS bid_at
    FROM {auction} a JOIN {bid} b
    ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
        AND b.date_time <= a.date_time + {longest_ms} * INTERVAL '0.001' SECOND
)
GROUP BY id, date_time
