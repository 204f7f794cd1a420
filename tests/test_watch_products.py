"""Products that a rank makes are told to the judge in their place, and the most bytes alive are known."""

import pytest
import torch
import torch.nn.functional as F

from grader.engine.inside import matrix_products
from grader.engine.ranks import events
from grader.kit import watch_products


@pytest.fixture
def told(monkeypatch):
    """The sizes of the products that were told."""

    class Reporter:
        sizes: list[int] = []

        def say(self, e, size):
            self.sizes.append(size)

    monkeypatch.setattr(matrix_products.Reporter, "mine", Reporter())
    Reporter.sizes.clear()
    return Reporter.sizes


def test_products_are_told_however_they_are_written(told):
    a, b, c = torch.randn(2, 3), torch.randn(3, 5), torch.randn(5)
    with watch_products():
        a @ b
        torch.einsum("ij,jk->ki", a, b)
        F.linear(a, b.T, c)
        torch.stack([a, a]) @ torch.stack([b, b])
        b @ c
        (a * a).sum()  # none
    assert told == [30, 30, 30, 60, 15]


def test_attention_is_two_products_and_its_backward_pass_five(told):
    q, k, v = (torch.randn(2, 3, length, 4, requires_grad=True) for length in (5, 7, 7))
    with watch_products():
        out = F.scaled_dot_product_attention(q, k, v)
        assert sum(told) == 2 * (2 * 3 * 5 * 7 * 4)
        out.sum().backward()
    assert sum(told) == 7 * (2 * 3 * 5 * 7 * 4)


def test_the_most_bytes_that_were_alive_at_a_time(told):
    given = torch.zeros(10)
    with watch_products((given,)) as watch:
        big = torch.zeros(100)
        del big
        torch.zeros(50)
    assert watch.most == 40 + 400


def test_a_product_without_a_size_is_no_event():
    assert events.read(b'{"e": "product", "size": 12, "t": 1.0}', 2)["size"] == 12
    for line in (b'{"e": "product", "t": 1.0}', b'{"e": "product", "size": "12", "t": 1.0}'):
        with pytest.raises(ValueError, match="no event|size"):
            events.read(line, 2)
