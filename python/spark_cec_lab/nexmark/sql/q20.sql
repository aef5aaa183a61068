SELECT b.auction, b.bidder, b.price, a.seller, a.reserve, a.item_name
FROM {bid} b JOIN {auction} a ON b.auction = a.id
WHERE a.category = 10
