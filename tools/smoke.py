"""``python smoke.py PYTHON``: the first block of the README prints in that Python what the README says.

For an installed wheel. It runs in an empty folder, so that nothing of the repository is imported.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"

blocks = re.search(r"```python\n(.*?)```\s*```text\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
if blocks is None:
    sys.exit("README.md has no block of Python with its output")
code, expected = blocks.groups()
python = Path(sys.argv[1]).absolute()
clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
with tempfile.TemporaryDirectory() as folder:
    command = [python, "-W", "error", "-c", code]
    result = subprocess.run(command, cwd=folder, env=clean, check=False, stdout=subprocess.PIPE, text=True)
if result.returncode:
    sys.exit(f"the first block of the README fails in {python}")
if result.stdout != expected:
    sys.exit(f"printed:\n{result.stdout}\nthe README says:\n{expected}")
print(f"the first block of the README prints in {python} what it says")
