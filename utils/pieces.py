"""A vocabulary of pieces of words, found by byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909).

WikiText-2 has 33,278 words, mostly rare ones, and each has a row in the embedding and one in the head.
Pieces are as many as one asks for, every text can be written with them, and frequent words still are one piece.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from utils.data import Corpus
from utils.shards import EOS

LEAST = 257  # every byte has its piece, and there is `<eos>`


def in_pieces(corpus: Corpus, vocab_size: int) -> Corpus:
    """The same text in pieces: each line's, then `<eos>`. The vocabulary is trained on the training split.

    A piece that begins with “Ġ” begins with a space.

    Args:
        vocab_size: at least LEAST; fewer pieces are made if the text has no more that come twice.
    """
    # Optional, see requirements-tokenizers.txt.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines(corpus.train, corpus), trainer)
    eos = tokenizer.token_to_id(EOS)

    def encoded(tokens: Tensor) -> Tensor:
        found = tokenizer.encode_batch_fast(list(lines(tokens, corpus)))
        return torch.tensor([number for line in found for number in (*line.ids, eos)], dtype=torch.int64)

    splits = [encoded(tokens) for tokens in (corpus.train, corpus.validation, corpus.test)]
    vocab = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    return Corpus(f"{corpus.name}-{len(vocab)}", *splits, vocab)


def lines(tokens: Tensor, corpus: Corpus) -> Iterator[str]:
    """The lines of a split, without their `<eos>`."""
    words: list[str] = []
    for number in tokens.tolist():
        if number == corpus.eos:
            yield " ".join(words)
            words = []
        else:
            words.append(corpus.vocab[number])
    if words:
        yield " ".join(words)
