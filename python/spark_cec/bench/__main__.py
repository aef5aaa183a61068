"""`python -m spark_cec.bench`."""

from __future__ import annotations

from spark_cec.bench.command import app

if __name__ == "__main__":
    app(prog_name="python -m spark_cec.bench")
