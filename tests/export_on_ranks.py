"""What `test_export.py` runs on ranks: a script trains, its checkpoints are exported, and it starts again from one."""

import json
import sys
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import load_file

from grader.engine.inside.observe import next_world
from utils.export import export


def there_and_back(code, rank, world, data, flags, again, checkpoints):
    """Rank 0 returns of each export the config and the weights, and the lines that both runs have written."""
    for name, text in data.items():
        path = Path(str(rank)) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sys.argv = ["train/script.py", "--data", "0/data", *flags]  # as run.json quotes it
    next_world(world)
    code.main(["--data", f"{rank}/data", "--out", "out", *flags])
    found = {"exports": {}, "lines": []}
    for name in checkpoints if rank == 0 else ():
        export(Path("out"), Path(f"export-{name}"), name, 20_000)
        config = json.loads(Path(f"export-{name}/config.json").read_text())
        weights = [load_file(file) for file in sorted(Path(f"export-{name}").glob("*.safetensors"))]
        found["exports"][name] = [config, len(weights), {k: v for part in weights for k, v in part.items()}]
    assert not dist.is_initialized()
    next_world(world)  # whose ranks meet when rank 0 has written
    code.main(["--data", f"{rank}/data", "--out", "again", *flags, *again, "--init", f"export-{checkpoints[0]}"])
    for run in ("out", "again") if rank == 0 else ():
        found["lines"].append([json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()])
    return found
