"""NexMark: an auction house's persons, auctions and bids as streams, and queries over them.

Source: Tucker, Tufte, Papadimos and Maier, "NEXMark: a benchmark for queries over data streams" (2008), with the
proportions, hot ratios and numbers of the generator that Beam and Flink made of it, by their public descriptions.
"""
