"""What the examples and the integration tests share: a Kafka broker, processes to kill, Spark's logs of a query."""
