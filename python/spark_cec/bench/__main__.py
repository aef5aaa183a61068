"""`python -m spark_cec.bench`."""

from __future__ import annotations

import sys

from spark_cec.extras import ExtraMissing, need

if __name__ == "__main__":
    try:
        need("the benchmark", "cli")
        need("the benchmark", "spark")
    except ExtraMissing as missing:
        print(missing, file=sys.stderr)
        raise SystemExit(2) from None

    from spark_cec.bench.command import app

    app(prog_name="python -m spark_cec.bench")
