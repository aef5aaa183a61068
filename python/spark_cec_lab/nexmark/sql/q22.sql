SELECT auction, bidder, price, split_part(url, '/', 4) AS directory, split_part(url, '/', 5) AS page
FROM {bid}
