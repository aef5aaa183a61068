"""The Kafka example: a broker of its own, a stream of purchases, and the comparison with pandas."""
