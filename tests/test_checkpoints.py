"""A sharded checkpoint is looked at before it is loaded; and a resumed run's record goes on."""

import json

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from grader.engine.ranks.evidence import whole
from utils.checkpoints import check_sharded
from utils.metrics import Metrics
from utils.model import TransformerLM


def model(dim=16):
    return TransformerLM(20, dim=dim, n_heads=2, n_layers=1, max_len=4)


@pytest.fixture
def saved(tmp_path):
    dcp.save({"model": model().state_dict(), "position": {"step": 3}}, checkpoint_id=tmp_path / "step-3", no_dist=True)
    return tmp_path / "step-3"


def refusal(folder, fresh, capsys):
    with pytest.raises(SystemExit) as stop:
        check_sharded(folder, fresh)
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1
    return said


def test_such_a_model_is_let_through(saved):
    check_sharded(saved, model())
    wrapped = model()
    wrapped.blocks[0] = checkpoint_wrapper(wrapped.blocks[0])
    check_sharded(str(saved), wrapped)


def test_another_model_is_refused(saved, capsys):
    assert "token_embedding.weight is (20, 16) there and (20, 32) here" in refusal(saved, model(dim=32), capsys)


def test_what_is_no_checkpoint_is_refused(tmp_path, capsys):
    assert "no sharded checkpoint" in refusal(tmp_path / "nowhere", model(), capsys)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / ".metadata").write_bytes(b"")
    assert "no sharded checkpoint" in refusal(tmp_path / "here", model(), capsys)


def test_a_record_goes_on(tmp_path):
    for step, append in ((1, False), (2, True)):
        with Metrics(tmp_path, append=append) as metrics:
            metrics.log("step", step, loss=1.0)
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]


def test_parts_make_a_whole():
    full = torch.arange(12.0).view(4, 3)
    parts = [{"part": full[2:], "first": [2, 0], "shape": [4, 3]}, {"part": full[:2], "first": [0, 0], "shape": [4, 3]}]
    assert torch.equal(whole(parts), full)
    assert whole(parts[:1])[:2].isnan().all()
    assert whole([full, full]) is full
