"""The shim's own unit tests, in a JVM without Python, agent and session: `python -m scala_tests --help`."""
