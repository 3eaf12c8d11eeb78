"""The README's Python runs as printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_code_of_the_readme(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", "\n".join(blocks)]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "[{'translation_text': 'eine Frau schläft'}]" in run.stdout
    assert run.stdout.count("Zoltan was called") == 2
    assert (tmp_path / "alignment.png").stat().st_size > 1000
