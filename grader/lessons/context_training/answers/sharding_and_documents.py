"""Other answers to TODOs 6 and 7 of context_training."""

from grader.kit import Answer

WRONG = [
    # TODO 6
    Answer(6, "sharded over the data axis", swap=('{"mesh": everyone,', '{"mesh": mesh["data"],'), says="numbers"),
    Answer(6, "copies along the data axis", swap=('{"mesh": everyone,', '{"mesh": mesh,'), says="numbers"),
    Answer(6, "sharded over the row", swap=('{"mesh": everyone,', '{"mesh": mesh["context"],'), says="numbers"),
    # TODO 7
    Answer(
        7,
        "positions of the sequence",
        ["return torch.arange(documents.shape[1], device=documents.device).expand_as(documents)", None],
        says="places in the sequence",
    ),
    Answer(7, "no mask", [None, "return None"], says="mask"),
    Answer(7, "the mask turned round", swap=("[:, queries, None] ==", "[:, queries, None] !="), says="opposite"),
    Answer(
        7,
        "rows and columns swapped",
        swap=(
            "(documents[:, queries, None] == documents[:, None, keys])",
            "(documents[:, keys, None] == documents[:, None, queries])",
        ),
        says="mask",
    ),
    Answer(
        7,
        "the first sequence's documents for all",
        swap=(
            "(documents[:, queries, None] == documents[:, None, keys])",
            "(documents[:1, queries, None] == documents[:1, None, keys])",
        ),
        says="mask",
    ),
    Answer(7, "positions from 1", swap=("cummax(dim=1).values", "cummax(dim=1).values + 1"), says="positions_in"),
    Answer(
        7,
        "only a document's number of zero counts",
        swap=("documents[:, 1:] != documents[:, :-1]", "documents[:, 1:] == 0"),
        says="positions_in",
    ),
    Answer(7, "no dimension for the heads", swap=("keys])[:, None]", "keys])"), says="has shape"),
    Answer(
        7,
        "earlier documents are seen",
        swap=("(documents[:, queries, None] ==", "(documents[:, queries, None] >="),
        says="mask",
    ),
    Answer(6, "the weights' dtype forgotten", swap=(', "mp_policy": precision(args)', ""), says="bfloat16"),
    Answer(
        7,
        "positions of the first sequence for all",
        swap=("documents[:, 1:] != documents[:, :-1]", "documents[:1, 1:] != documents[:1, :-1]"),
        says="positions_in",
    ),
]


RIGHT = [
    Answer(
        6,
        "by a mesh of a table",
        [
            """
        everyone = DeviceMesh(mesh.device_type, mesh.mesh.flatten(), mesh_dim_names=("all",))
        options = {"mesh": everyone, "mp_policy": precision(args)}
        """
        ],
    ),
    Answer(6, "without naming a mesh: all ranks", ['options = {"mp_policy": precision(args)}']),
    Answer(
        7,
        "a sequence's first place begins nothing: it is 0",
        swap=("begins = torch.ones_like(documents, dtype=torch.bool)", "begins = torch.zeros_like(documents).bool()"),
    ),
    Answer(
        7,
        "by comparing all pairs",
        [
            """
        same = documents[:, :, None] == documents[:, None, :]
        return same.tril().sum(dim=2) - 1
        """,
            """
        table = documents.unsqueeze(1).unsqueeze(3) == documents.unsqueeze(1).unsqueeze(2)
        return table.index_select(2, queries.to(table.device)).index_select(3, keys.to(table.device))
        """,
        ],
    ),
]
