"""Other answers to the TODOs of 01_collectives."""

from grader.engine.mutants import Answer

REDUCE = "total = torch.stack(inputs).sum(dim=0)\nreturn [total.clone() for _ in inputs]"
GATHER = "return [torch.cat(inputs) for _ in inputs]"
SCATTER = "total = torch.stack(inputs).sum(dim=0)\nreturn [chunk.clone() for chunk in total.chunk(len(inputs))]"

WRONG = [
    Answer(1, "each rank keeps its own input", ["return [x.clone() for x in inputs]", GATHER, SCATTER], says="all_reduce"),
    Answer(1, "the mean instead of the sum", ["total = torch.stack(inputs).mean(dim=0)\nreturn [total.clone() for _ in inputs]", GATHER, SCATTER],
           says="all_reduce"),
    Answer(1, "only rank 0 has the sum", ["total = torch.stack(inputs).sum(dim=0)\nreturn [total] + [x.clone() for x in inputs[1:]]", GATHER, SCATTER],
           says="rank 1"),
    Answer(1, "all ranks hold one tensor object", ["total = torch.stack(inputs).sum(dim=0)\nreturn [total] * len(inputs)", GATHER, SCATTER],
           says="the same memory"),
    Answer(1, "gathered in the order of arrival", [REDUCE, "return [torch.cat(inputs[r:] + inputs[:r]) for r in range(len(inputs))]", SCATTER],
           says="all_gather"),
    Answer(1, "gathered as a list", [REDUCE, "return [list(inputs) for _ in inputs]", SCATTER], says="no tensor"),
    Answer(1, "every rank the whole sum after a reduce-scatter", [REDUCE, GATHER, REDUCE], says="reduce_scatter"),
    Answer(1, "scattered without the sum", [REDUCE, GATHER, "return [x.chunk(len(inputs))[r].clone() for r, x in enumerate(inputs)]"],
           says="reduce_scatter"),
    Answer(1, "chunks by stride", [REDUCE, GATHER, "total = torch.stack(inputs).sum(dim=0)\nreturn [total[r::len(inputs)].clone() for r in range(len(inputs))]"],
           says="reduce_scatter"),
    Answer(1, "the third is not written", [REDUCE, GATHER, "raise NotImplementedError"]),
]

RIGHT = [
    Answer(1, "loops", [
        "total = torch.zeros_like(inputs[0])\nfor x in inputs:\n    total += x\nreturn [total + 0 for _ in inputs]",
        "return [torch.cat([x for x in inputs]) for _ in range(len(inputs))]",
        "size = len(inputs[0]) // len(inputs)\nreturn [sum(x[r * size:(r + 1) * size] for x in inputs) for r in range(len(inputs))]"]),
    Answer(1, "one from the others", [
        "pieces = reduce_scatter(inputs)\nreturn [torch.cat(pieces) for _ in inputs]", GATHER, SCATTER]),
    Answer(1, "chunks that are views, but of other memory each", [REDUCE, GATHER, "return list(torch.stack(inputs).sum(dim=0).chunk(len(inputs)))"]),
]
