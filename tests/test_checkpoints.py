"""A sharded checkpoint is whole or not there, and of one run; a resumed run's record goes on."""

import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import PosixPath
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from grader.engine.lesson import lessons
from grader.engine.ranks.evidence import whole
from utils.checkpoints import CONTENTS, newest, saved_whole, to_resume, why_not
from utils.job import left_behind
from utils.metrics import Metrics
from utils.model import TransformerLM
from utils.checkpoint_pickles import Values, described

SCRIPT = "solutions/train/tp_training.py"
# Each checkpoint has some 20 MB, so that a kill finds a save under way.
SLOW_SAVES = (
    "--data random --batch-size 4 --seq-len 8 --dim 256 --heads 2 --layers 2 --max-steps 6 --save-every 1 --log-every 1"
).split()


def model(dim=16):
    return TransformerLM(20, dim=dim, n_heads=2, n_layers=1, max_len=4)


def save(out, step):
    with saved_whole(out, step) as folder:
        state = {f"optimizer.{name}.exp_avg": p for name, p in model().named_parameters()}
        dcp.save({"model": model().state_dict(), **state, "position": {"step": 3}}, checkpoint_id=folder, no_dist=True)
    return out / f"step-{step}"


@pytest.fixture
def saved(tmp_path):
    return save(tmp_path / "run", 3)


def resume(folder, fresh=None, optimizer="adamw"):
    return to_resume(SimpleNamespace(resume=str(folder), optimizer=optimizer), fresh or model())


def refusal(capsys, *how):
    with pytest.raises(SystemExit) as stop:
        resume(*how)
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1
    return said


def test_such_a_model_is_let_through(saved):
    assert resume(saved) == str(saved)
    wrapped = model()
    wrapped.blocks[0] = checkpoint_wrapper(wrapped.blocks[0])
    resume(saved, wrapped)


def test_another_model_or_optimizer_is_refused(saved, capsys):
    assert "token_embedding.weight is (20, 16) there and (20, 32) here" in refusal(capsys, saved, model(dim=32))
    assert "saved with --optimizer adamw" in refusal(capsys, saved, model(), "sgd")


def test_what_is_no_checkpoint_is_refused(tmp_path, capsys):
    assert "no sharded checkpoint" in refusal(capsys, tmp_path / "nowhere")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / ".metadata").write_bytes(b"")
    assert "no sharded checkpoint" in refusal(capsys, tmp_path / "here")


def test_what_is_not_whole_is_refused(saved, capsys):
    part = saved / "__0_0.distcp"
    content = part.read_bytes()
    part.write_bytes(content[:-1])
    assert "__0_0.distcp is of another checkpoint, or cut" in refusal(capsys, saved)
    part.write_bytes(content[1:])
    assert f"has {len(content) - 1:,} bytes, and had {len(content):,}" in refusal(capsys, saved)
    part.unlink()
    assert "not whole: __0_0.distcp is missing" in refusal(capsys, saved)


def test_a_part_of_another_run_is_refused(saved, tmp_path, capsys):
    other = save(tmp_path / "other", 3)
    mine, theirs = (folder / "__0_0.distcp" for folder in (saved, other))
    assert mine.stat().st_size == theirs.stat().st_size  # else its size would tell
    shutil.copy(theirs, mine)
    assert "__0_0.distcp is of another checkpoint" in refusal(capsys, saved)


def test_a_run_that_starts_from_scratch_where_a_checkpoint_is_says_how_to_resume(tmp_path):
    out = tmp_path / "run"
    fresh = SimpleNamespace(out=str(out), resume=None)
    assert left_behind(fresh) == ""
    save(out, 3)
    assert "step-3: this run starts from scratch" in left_behind(fresh) and f"--resume {out} " in left_behind(fresh)
    assert left_behind(SimpleNamespace(out=str(out), resume=str(out))) == ""
    assert left_behind(SimpleNamespace(out=str(out))) == "", "a script that cannot resume"
    (out / "step-3" / "__0_0.distcp").unlink()
    assert left_behind(fresh) == ""
    (out / "stream.pt").touch()
    assert "stream.pt" in left_behind(fresh)


def test_the_newest_whole_one_is_taken(tmp_path, capsys):
    """By the time, not by the number: an earlier run may have left a higher one. What is not whole is named."""
    out = tmp_path / "run"
    for step in (9, 3, 4):
        save(out, step)
    (out / "step-4" / "__0_0.distcp").unlink()
    (out / ".step-5.abc.part").mkdir()
    assert newest(out) == out / "step-3" and resume(out) == str(out / "step-3")
    said = capsys.readouterr().out
    assert said == f"step-4 is not whole; step-5 was not saved to its end; resumes from {out / 'step-3'}\n"


def test_a_save_that_fails_leaves_nothing_and_the_next_clears_up(saved, tmp_path):
    before = (saved / CONTENTS).read_text()
    with pytest.raises(RuntimeError), saved_whole(saved.parent, 3) as folder:
        folder.mkdir()
        raise RuntimeError
    assert (saved / CONTENTS).read_text() == before and [p.name for p in saved.parent.iterdir()] == ["step-3"]
    (saved.parent / ".step-2.abc.part").mkdir()  # of a run that was killed
    save(saved.parent, 3)
    assert [p.name for p in saved.parent.iterdir()] == ["step-3"] and not why_not(saved)
    assert (saved / CONTENTS).read_text() != before


def test_a_script_that_saves_nothing_yet_leaves_nothing(tmp_path):
    with saved_whole(tmp_path, 1):
        pass
    assert not list(tmp_path.iterdir())


@pytest.fixture
def no_handler():
    """SIGTERM as a script finds it, whatever ran in this process before."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_in_a_save_says_from_where_to_resume(saved, capsys, no_handler):
    with pytest.raises(SystemExit) as stop, saved_whole(saved.parent, 4) as folder:
        folder.mkdir()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)  # the signal ends it
    assert stop.value.code == 143 and [p.name for p in saved.parent.iterdir()] == ["step-3"]
    assert f"--resume {saved.parent} resumes from step-3" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def losses(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(line["kind"], line["step"], line["loss"]) for line in lines]


def start(out, *flags, world=2):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    return subprocess.Popen(
        [sys.executable, *launcher, SCRIPT, *SLOW_SAVES, "--out", str(out), *flags],
        cwd=lessons.COURSE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ranks_of(torchrun):
    children = f"/proc/{torchrun.pid}/task/{torchrun.pid}/children"
    return [int(pid) for pid in open(children).read().split()]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
def test_killed_twice_in_a_save_and_resumed(tmp_path):
    """kill -9 of a rank, then of all, each while a checkpoint is being written; the losses are those of one run."""
    straight = start(tmp_path / "straight")
    said = straight.communicate(timeout=240)
    assert straight.returncode == 0, said
    out = tmp_path / "killed"
    for rank_alone in (True, False):
        killed = start(out, *(["--resume", str(out)] * (not rank_alone)))
        done = newest(out).name if newest(out) else ""
        while killed.poll() is None:  # once a further one is whole, in the next save
            more = newest(out) and newest(out).name != done
            if more and any(part.stat().st_size for part in out.glob(".step-*.part/*.distcp")):
                for pid in ranks_of(killed)[: 1 if rank_alone else None]:
                    os.kill(pid, signal.SIGKILL)
                break
            time.sleep(0.001)  # the ranks need the processor; a save takes many times as long
        said = killed.communicate(timeout=120)
        assert killed.returncode, f"it was not killed: {said}"
        assert list(out.glob(".step-*.part")), "not in a save: nothing was being written"
        assert all(not why_not(folder) for folder in out.glob("step-*"))
    last = start(out, "--resume", str(out))
    said = last.communicate(timeout=240)
    assert last.returncode == 0 and f"resumes from {out}/step-" in said[0], said
    assert losses(out) == losses(tmp_path / "straight")
    assert not list(out.glob(".step-*"))


def test_a_record_goes_on_after_the_checkpoint_and_has_no_step_twice(tmp_path):
    with Metrics(tmp_path) as metrics:
        for kind, step in (("step", 1), ("epoch", 1), ("step", 2), ("epoch", 2), ("step", 3)):
            metrics.log(kind, step, loss=1.0, tokens_per_s=1.0)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "st')  # it was killed
    with Metrics(tmp_path, after=2) as metrics:  # what is saved at a step comes before the line on its epoch
        for kind, step in (("epoch", 2), ("step", 3)):
            metrics.log(kind, step, loss=2.0, tokens_per_s=1.0)
    assert losses(tmp_path) == [
        ("step", 1, 1.0),
        ("epoch", 1, 1.0),
        ("step", 2, 1.0),
        ("epoch", 2, 2.0),
        ("step", 3, 2.0),
    ]


def test_parts_make_a_whole():
    full = torch.arange(12.0).view(4, 3)
    parts = [{"part": full[2:], "first": [2, 0], "shape": [4, 3]}, {"part": full[:2], "first": [0, 0], "shape": [4, 3]}]
    assert torch.equal(whole(parts), full)
    assert whole(parts[:1])[:2].isnan().all()
    assert whole([full, full]) is full


class Runs:
    """Unpickled, it writes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


class Asks:
    """Pickled as a call of getattr."""

    def __init__(self, kind, name):
        self.args = kind, name

    def __reduce__(self):
        return getattr, self.args


def test_a_memory_format_is_read_however_python_pickles_it():
    """Python 3.11.2 pickles a member of an enumeration as a call of getattr, which is good for nothing else."""
    contiguous = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    for pickled in (contiguous, Asks(_MEM_FORMAT_ENCODING, contiguous.name)):
        assert Values(io.BytesIO(pickle.dumps(pickled))).load() is contiguous
    for other in (Asks(_MEM_FORMAT_ENCODING, "__class__"), Asks(PosixPath, "home"), Asks(contiguous, "name")):
        with pytest.raises(pickle.UnpicklingError, match="getattr"):
            Values(io.BytesIO(pickle.dumps(other))).load()


@pytest.mark.parametrize("where", ["the list", "an entry", "a place", "a name"])
def test_a_strangers_checkpoint_runs_no_code(tmp_path, capsys, where):
    """Case and brothers: code in .metadata, in a value that is no tensor, and a part that lies elsewhere."""
    ran, out = tmp_path / "ran", tmp_path / "run"
    with saved_whole(out, 3) as folder:
        position = {"step": Runs(ran) if where == "an entry" else 3}
        state = {f"optimizer.{name}.exp_avg": p for name, p in model().named_parameters()}
        dcp.save({"model": model().state_dict(), **state, "position": position}, checkpoint_id=folder, no_dist=True)
        listed = folder / ".metadata"
        metadata = pickle.loads(listed.read_bytes())
        if where == "the list":
            metadata.planner_data = Runs(ran)
        if where == "a name":
            metadata.planner_data = pickle.PickleBuffer  # harmless, and not on the list
        if where == "a place":
            next(iter(metadata.storage_data.values())).relative_path = "../../part"
        listed.write_bytes(pickle.dumps(metadata))
    ran.unlink(missing_ok=True)
    assert "it holds more than tensors and plain values" in refusal(capsys, out / "step-3")
    assert not ran.exists()


def test_an_older_torch_reads_what_2_15_wrote(saved, monkeypatch):
    """2.15 pickles a sixth property of each tensor, its strides; 2.13 and 2.14 unpack five."""
    from torch.distributed.checkpoint.metadata import TensorProperties

    metadata = pickle.loads((saved / ".metadata").read_bytes())
    plain = TensorProperties.__setstate__

    def of_2_14(properties, state):
        dtype, layout, requires_grad, memory_format, pin_memory = state
        plain(properties, state)

    of_2_14.__name__ = "__setstate__"
    state = TensorProperties.__getstate__
    fields = {name: field for name, field in TensorProperties.__dataclass_fields__.items() if name != "strides"}
    monkeypatch.setattr(TensorProperties, "__dataclass_fields__", fields)
    monkeypatch.setattr(TensorProperties, "__setstate__", of_2_14)
    monkeypatch.setattr(TensorProperties, "__getstate__", lambda properties: (*state(properties)[:5], (1,)))
    index = saved / ".metadata"
    index.write_bytes(pickle.dumps(metadata))
    with pytest.raises(ValueError, match="too many values"):
        Values(index.open("rb")).load()
    assert described(saved)


def test_what_cannot_be_read_names_both_versions(saved, capsys, monkeypatch):
    contents = json.loads((saved / CONTENTS).read_text())
    assert contents["torch"] == torch.__version__
    index = saved / ".metadata"
    index.write_bytes(index.read_bytes()[:-40] + b"." * 40)  # as many bytes, and no pickle
    (saved / CONTENTS).write_text(json.dumps(contents | {"torch": "9.1.0"}))
    said = refusal(capsys, saved)
    assert f"torch 9.1.0 wrote it, and torch {torch.__version__}, which runs here, cannot read it" in said
    assert "more than tensors" not in said
