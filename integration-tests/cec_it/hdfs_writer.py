"""Creates files on HDFS until it is killed: `python -m cec_it.hdfs_writer URL BYTES`. Prints a dot before each file."""

from __future__ import annotations

import sys

from spark_cec.adapters.fsspec_storage import open_storage

if __name__ == "__main__":
    storage = open_storage(sys.argv[1])
    for number in range(1_000_000):
        print(".", end="", flush=True)
        storage.create(f"d/{number:06d}", b"%06d" % number * (int(sys.argv[2]) // 6))
