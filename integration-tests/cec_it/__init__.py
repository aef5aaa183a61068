"""What the integration tests share: streaming queries, a driver to be killed, and how their results are compared."""
