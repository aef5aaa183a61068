"""The command line `cec`, as a program of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def cec(*arguments: str) -> dict[str, Any]:
    """What a command answers with `--json`."""
    command = [str(Path(sys.executable).with_name("cec")), *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer
