SELECT auction, bidder, price, channel,
       CASE lower(channel)
            WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE regexp_extract(channel, 'channel-([0-9]+)', 1) END AS channel_id
FROM {bid}
