"""Shards, written and read; the data command; a worker that dies; checkpoints of a stream that are refused."""

import argparse
import json
import os
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from typer.testing import CliRunner

from grader.engine.commands.cli import app
from grader.engine.lesson import lessons
from utils import shards, streams
from utils.data import DataError, load_corpus

VOCAB = ["<eos>", *(f"w{n}" for n in range(1, 90))]


def written(folder, documents, vocab=VOCAB, file_size=20):
    splits = {split: [np.array(document) for document in documents] for split in ("train", "validation", "test")}
    return shards.write_shards(folder, "a name", vocab, splits, file_size)


@pytest.mark.parametrize(("vocab", "dtype"), [(VOCAB, "<u2"), ([*VOCAB, *map(str, range(1 << 16))], "<u4")])
def test_files_of_a_fixed_size_hold_the_text(tmp_path, vocab, dtype):
    last = len(vocab) - 1
    there = written(tmp_path / "s", [[5, 6, last], list(range(40)), [7]], vocab)
    full = 20 // int(dtype[-1])
    assert there.train.dtype == dtype
    assert [file.tokens for file in there.train.files[:-1]] == [full] * (len(there.train.files) - 1)
    assert 0 < there.train.files[-1].tokens <= full
    assert shards.in_memory(there.train).tolist() == [5, 6, last, *range(40), 7]
    starts = shards.Documents(there.train)
    assert starts.between(0, 44).tolist() == [3, 43]  # nothing comes before the first
    assert starts.between(3, 43).tolist() == [0] and starts.between(4, 43).tolist() == []
    shards.check_checksums(there)
    assert load_corpus(str(tmp_path / "s")).vocab == vocab


def test_an_empty_text_is_a_file_without_tokens(tmp_path):
    there = written(tmp_path / "s", [])
    assert there.train.tokens == 0 and len(shards.Documents(there.train).between(0, 9)) == 0


def test_what_is_there_is_not_written_over(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "mine").write_text("a student's")
    with pytest.raises(FileExistsError):
        written(tmp_path / "s", [[1]])
    assert [path.name for path in tmp_path.iterdir()] == ["s"] and (
        tmp_path / "s" / "mine"
    ).read_text() == "a student's"


def test_half_written_shards_are_none(tmp_path):
    def breaks_off():
        yield np.array([1, 2])
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        shards.write_shards(tmp_path / "s", "a name", VOCAB, {"train": breaks_off()})
    assert not list(tmp_path.iterdir())


def test_damage_is_named(tmp_path):
    there = written(tmp_path / "s", [list(range(30))])
    victim, bits = there.train.files[1].path, there.train.files[1].path.read_bytes()
    victim.write_bytes(bits[:-2] + b"\0\1")
    shards.check_sizes(there)
    with pytest.raises(DataError, match=r"train-00001.bin is not what was written; write the shards again"):
        load_corpus(str(tmp_path / "s"))
    victim.write_bytes(bits[:-2])
    with pytest.raises(DataError, match="train-00001.bin has 18 bytes and not 20"):
        shards.check_sizes(there)
    victim.unlink()
    with pytest.raises(DataError, match=r"train-00001.bin is missing"):
        shards.check_sizes(there)
    index = tmp_path / "s" / shards.INDEX
    right = json.loads(index.read_text())
    for wrong in ("", "[]", "{}", json.dumps(right | {"dtype": "<f8"}), json.dumps(right | {"train": ["x"]})):
        index.write_text(wrong)
        with pytest.raises(DataError, match="index.json cannot be read"):
            shards.open_shards(tmp_path / "s")


def lined(text):
    words = [word for line in text.splitlines() for word in (*line.split(), "<eos>")]
    vocab = [*dict.fromkeys(["<eos>", *words])]
    tokens = torch.tensor([vocab.index(word) for word in words])
    return [" ".join(vocab[n] for n in document) for document in shards.documents_of(tokens, vocab)]


def test_documents_begin_at_titles_or_after_empty_lines():
    assert lined("\n= One =\na b\n= = Part = =\nc\n\nd\n= Two more =\ne") == [
        "<eos>",
        "= One = <eos> a b <eos> = = Part = = <eos> c <eos> <eos> d <eos>",
        "= Two more = <eos> e <eos>",
    ]
    assert lined("a b\nc\n\n\nd\n\n e f") == ["a b <eos> c <eos> <eos> <eos>", "d <eos> <eos>", "e f <eos>"]
    assert lined("\na\nb") == ["<eos>", "a <eos> b <eos>"]
    assert lined("a = b\nc") == ["a = b <eos> c <eos>"]


# ./workbook data --shards


def said(*args):
    done = CliRunner().invoke(app, ["data", *args])
    return done.exit_code, " ".join(done.output.split())


def test_a_corpus_as_shards_is_the_corpus(tmp_path):
    out = tmp_path / "s"
    args = ("--shards", "--data", "builtin", "--file-size", "30kB", "--out", str(out))
    code, text = said(*args)
    assert code == 0 and "57,703 train in 4 files" in text and "of uint16, 6,604 types" in text, text
    assert "--data" in text
    one, other = load_corpus(str(out)), load_corpus("builtin")
    assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("train", "validation", "test"))
    assert one.vocab == other.vocab
    code, text = said(*args)
    assert code == 0 and "is there already, and whole: all checksums agree" in text


def test_mistakes_of_data_are_one_line(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    random = ("--shards", "--data", "random", "--out")
    assert said(*random, str(tmp_path / "s"))[0] == 0
    for args, word in (
        (("--vocab", "500"), "are for --shards"),
        ((*random, str(tmp_path / "t"), "--file-size", "3 bananas"), "--file-size: '3 bananas' is not a size"),
        ((*random, str(tmp_path / "t"), "--vocab", "200"), "--vocab 200 is less than 257"),
        ((*random, str(tmp_path / "full")), "there already, and not empty; choose another --out"),
        (("--shards", "--data", "builtin", "--out", str(tmp_path / "s")), "has the shards of random"),
        (("--shards", "--data", "nowhere", "--out", str(tmp_path / "t")), "no such folder"),
        ((*random, "/dev/null/s"), "cannot be written"),
    ):
        code, text = said(*args)
        assert code == 2 and word in text, (args, text)
        assert not (tmp_path / "t").exists()


def test_pieces_of_words_hold_the_text(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="requirements-tokenizers.txt")
    code, text = said("--shards", "--data", "builtin", "--vocab", "900", "--out", str(tmp_path / "s"))
    assert code == 0 and "900 types" in text, text
    pieces, words = load_corpus(str(tmp_path / "s")), load_corpus("builtin")
    assert len(pieces.train) > len(words.train) and (pieces.test == pieces.eos).sum() == (words.test == words.eos).sum()
    decode = tokenizers.decoders.ByteLevel().decode
    line = decode([pieces.vocab[n] for n in pieces.test[:400].tolist()]).split("<eos>")[0]
    assert line == " ".join(words.vocab[n] for n in words.test.tolist()).split(" <eos>")[0]


def test_without_the_package_a_line_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    monkeypatch.setattr("utils.optional_packages.find_spec", lambda name: None)
    code, text = said("--shards", "--data", "random", "--vocab", "500", "--out", str(tmp_path / "s"))
    assert code == 2 and "tokenizers is not installed; run:" in text and "requirements-tokenizers.txt" in text


# A worker that dies


class Broken(IterableDataset):
    def __init__(self, how):
        self.how = how

    def __iter__(self):
        yield torch.zeros(1)
        if self.how == "raises":
            raise ValueError("the file\nis cut")
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raises", "worker 0 of a loader failed: is cut"),
        ("killed", "was ended by a signal: Killed; a job that runs out"),
    ],
)
def test_a_worker_that_dies_is_told_with_its_reason(how, says, capsys):
    with pytest.raises(SystemExit) as end, streams.failures_told():
        list(DataLoader(Broken(how), num_workers=1))
    assert end.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ") and says in line and line.count("\n") == 1


def test_other_errors_are_left_alone():
    with pytest.raises(RuntimeError, match="of my own"), streams.failures_told():
        raise RuntimeError("of my own")


# The checkpoint


def test_what_is_no_checkpoint_is_refused(tmp_path, capsys):
    args = argparse.Namespace(resume=str(tmp_path), lr=0.1)
    path = tmp_path / streams.CHECKPOINT
    right = {"model": {}, "optimizer": {}, "stream": {}, "progress": {}, "same": {"lr": 0.1}}
    for saved, word in (
        (None, "there is no stream.pt in it"),
        (b"text", "cannot be read"),
        (right | {"same": {}}, "cannot be read"),
        (right | {"same": {"lr": 0.2}}, "it was saved with --lr 0.2"),
        ({name: value for name, value in right.items() if name != "stream"}, "cannot be read"),
        ([1], "cannot be read"),
    ):
        if isinstance(saved, bytes):
            path.write_bytes(saved)
        elif saved is not None:
            torch.save(saved, path)
        with pytest.raises(SystemExit) as end:
            streams.load_checkpoint(args, ("lr",))
        line = capsys.readouterr().err
        assert end.value.code == 2 and word in line and line.count("\n") == 1, line
    torch.save(right, path)
    assert streams.load_checkpoint(args, ("lr",)) == right
    assert streams.load_checkpoint(argparse.Namespace(resume=None), ("lr",)) is None


def test_every_script_takes_shards():
    """The corpus of shards is a folder for them all: none reads the words of a corpus in another way."""
    scripts = [lessons.source_path(stem) for stem in lessons.ORDER if stem.endswith("_training")]
    for script in scripts:
        text = script.read_text("utf-8")
        assert "load_corpus(" in text or "make_sets(" in text or "find_shards(" in text, script.name
