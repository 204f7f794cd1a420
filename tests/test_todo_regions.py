"""The region grammar, and finding regions again in a file that a student edited."""

import pytest

from grader.engine.lesson import changes, todo_regions

SOURCE = '''\
"""A lesson."""


def setup():
    # TODO 1: Join the group. Every rank must do it,
    # before anything else.
    ### BEGIN SOLUTION
    join()
    return rank()
    ### STUDENT
    # return 0
    ### END SOLUTION


def shard(data):
    # TODO 2: Give each rank its shard.
    ### BEGIN SOLUTION
    return data[rank() :: world()]
    ### END SOLUTION


def main():
    rank = setup()
    # TODO 3: Print once.
    ### BEGIN SOLUTION
    if rank == 0:
        print("start")
    ### STUDENT
    # print("start")
    #
    # # as many times as there are ranks
    ### END SOLUTION
    total = 0
    for x in shard(range(10)):
        total += x
    # TODO 3, again:
    ### BEGIN SOLUTION
    if rank == 0:
        print(total)
    ### STUDENT
    # print(total)
    ### END SOLUTION
    return total
'''

START = '''\
"""A lesson."""


def setup():
    # TODO 1: Join the group. Every rank must do it,
    # before anything else.
    return 0


def shard(data):
    # TODO 2: Give each rank its shard.
    raise NotImplementedError("TODO 2")


def main():
    rank = setup()
    # TODO 3: Print once.
    print("start")

    # as many times as there are ranks
    total = 0
    for x in shard(range(10)):
        total += x
    # TODO 3, again:
    print(total)
    return total
'''

BATCH = """\
#!/bin/bash
# TODO 1: Ask for every GPU of the node.
### BEGIN SOLUTION
#SBATCH --gres=gpu:4
### STUDENT
# #SBATCH --gres=gpu:1
### END SOLUTION
srun python x.py
"""


def code_of(edited: str, todo: int) -> list[str]:
    """What ``locate`` takes for the TODO's code, a text for each region."""
    lines = edited.split("\n")
    return ["\n".join(lines[r.start - 1 : r.stop - 1]) for r in todo_regions.locate(SOURCE, edited)[todo]]


def test_the_start_keeps_comments_and_takes_one_prefix_off():
    assert todo_regions.compose(SOURCE) == START
    assert todo_regions.compose(BATCH).splitlines()[2] == "#SBATCH --gres=gpu:1"


def test_regions_know_their_place_and_title():
    found = todo_regions.parse(SOURCE)
    assert [region.todo for region in found] == [1, 2, 3, 3]
    assert [region.title for region in found] == ["Join the group", "Give each rank its shard", "Print once", ""]
    assert todo_regions.titles(SOURCE) == {1: "Join the group", 2: "Give each rank its shard", 3: "Print once"}
    lines = SOURCE.split("\n")
    for region in found:
        assert lines[region.first - 1].strip() == todo_regions.BEGIN
        assert lines[region.last - 1].strip() == todo_regions.END


def test_a_wrapped_title_is_joined():
    wrapped = "# TODO 1: Say what to\n#   achieve here. And why.\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n"
    assert todo_regions.titles(wrapped) == {1: "Say what to achieve here"}


def test_compose_solves_the_todos_it_is_given():
    text = todo_regions.compose(SOURCE, [1, 3])
    assert "    join()\n    return rank()\n" in text
    assert text.count("if rank == 0:") == 2
    assert 'raise NotImplementedError("TODO 2")' in text
    assert todo_regions.BEGIN not in text and todo_regions.STUDENT not in text


def test_compose_puts_other_bodies_in_at_the_regions_indentation():
    text = todo_regions.compose(SOURCE, [1, 2, 3], {2: "\n        if data:\n            return data\n"})
    assert "shard.\n    if data:\n        return data\n\n\ndef main" in text

    first_only = todo_regions.compose(SOURCE, [], {3: "pass"})
    assert "    # TODO 3: Print once.\n    pass\n    total = 0" in first_only
    assert "    if rank == 0:\n        print(total)\n" in first_only

    both = todo_regions.compose(SOURCE, [], {3: ["a()", "b()"]})
    assert "    a()\n    total" in both and "    b()\n    return total" in both

    with pytest.raises(ValueError, match="TODO 3 has 2 regions, 1 bodies"):
        todo_regions.compose(SOURCE, [], {3: ["a()"]})


def test_a_stripped_source_serves_like_the_whole_one_but_holds_no_solution():
    for source in (SOURCE, BATCH):
        stripped = todo_regions.strip_solutions(source)
        assert todo_regions.compose(stripped) == todo_regions.compose(source)
        assert todo_regions.titles(stripped) == todo_regions.titles(source)
        assert all(not region.solution for region in todo_regions.parse(stripped))
        assert todo_regions.strip_solutions(stripped) == stripped
    assert "join()" not in todo_regions.strip_solutions(SOURCE)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("### BEGIN SOLUTION\n### END SOLUTION", "x.py:1: no '# TODO n"),
        ("# TODO 1: A.\n\n### BEGIN SOLUTION\n### END SOLUTION", "x.py:1: no ### BEGIN"),
        ("# TODO 1: A.\n# TODO 2: B.\n", "x.py:1: no ### BEGIN"),
        ("# TODO 1: A.", "x.py:1: .* ends with a TODO"),
        ("# TODO 1:\n### BEGIN SOLUTION\n### END SOLUTION", "x.py:1: a TODO without a title"),
        ("# TODO 1: A.\n### BEGIN SOLUTION\nx\n", "x.py:2: ### BEGIN SOLUTION without"),
        ("# TODO 1: A.\n### BEGIN SOLUTION\n### BEGIN SOLUTION\n", "x.py:3: .* opens at line 2"),
        ("x\n### END SOLUTION", "x.py:2: ### END SOLUTION without"),
        ("x\n### STUDENT", "x.py:2: ### STUDENT without"),
        ("# TODO 1: A.\n### BEGIN SOLUTION\n### STUDENT\n### STUDENT\n### END SOLUTION", "x.py:4: a second"),
        ("# TODO 1: A.\n### BEGIN SOLUTION\n### STUDENT\nx = 1\n### END SOLUTION", "x.py:4: .*open with '# '"),
        ("# TODO 1: A.\n  ### BEGIN SOLUTION\n### END SOLUTION", "x.py:2: .* indentation"),
    ],
)
def test_malformed_sources_are_named_with_file_and_line(source, message):
    with pytest.raises(todo_regions.SourceError, match=message):
        todo_regions.parse(source, "x.py")


def test_locate_finds_the_bodies_of_untouched_and_solved_files():
    assert code_of(START, 1) == ["    return 0"]
    assert code_of(START, 3)[1] == "    print(total)"
    solved = todo_regions.compose(SOURCE, [1, 2, 3])
    assert code_of(solved, 1) == ["    join()\n    return rank()"]
    assert code_of(solved, 3) == [
        '    if rank == 0:\n        print("start")',
        "    if rank == 0:\n        print(total)",
    ]


def test_locate_works_in_a_source_with_its_markers():
    assert "return data[rank() :: world()]" in code_of(SOURCE, 2)[0]
    assert "def main" not in code_of(SOURCE, 2)[0]


EDITS = {
    "comment deleted": START.replace("    # TODO 2: Give each rank its shard.\n", ""),
    "all comments deleted": "\n".join(line for line in START.split("\n") if not line.strip().startswith("#")),
    "comment reworded": START.replace("Give each rank its shard.", "done!"),
    "CRLF": START.replace("\n", "\r\n"),
    "tabs": START.replace("    ", "\t"),
    "imports added above": "import os\nimport sys\n\nX = 1\n" + START,
    "text appended": START + "\n\nif __name__ == '__main__':\n    main()\n",
    "function moved": (
        START.replace(
            'def shard(data):\n    # TODO 2: Give each rank its shard.\n    raise NotImplementedError("TODO 2")\n\n\n',
            "",
        )
        + '\n\ndef shard(data):\n    # TODO 2: Give each rank its shard.\n    raise NotImplementedError("TODO 2")\n'
    ),
    "given code wrapped": START.replace(
        "    for x in shard(range(10)):\n        total += x",
        "    try:\n        for x in shard(range(10)):\n            total += x\n    finally:\n        pass",
    ),
}


@pytest.mark.parametrize("edited", EDITS.values(), ids=EDITS)
def test_an_edit_elsewhere_neither_moves_nor_touches_a_region(edited):
    assert [line.strip() for line in code_of(edited, 2)[0].split("\n")] == ['raise NotImplementedError("TODO 2")']
    assert not todo_regions.attempted(SOURCE, edited, 2)
    line = next(n for n, text in enumerate(edited.split("\n"), 1) if "NotImplementedError" in text)
    assert todo_regions.todo_at(SOURCE, edited, line) == 2


@pytest.mark.parametrize("edited", EDITS.values(), ids=EDITS)
def test_a_solved_region_is_found_under_the_same_edits(edited):
    edited = edited.replace('raise NotImplementedError("TODO 2")', "mine = data[rank()::world()]\n    return mine")
    assert [line.strip() for line in code_of(edited, 2)[0].split("\n")] == [
        "mine = data[rank()::world()]",
        "return mine",
    ]
    assert todo_regions.attempted(SOURCE, edited, 2)
    assert not todo_regions.attempted(SOURCE, edited, 1)


def test_a_body_that_repeats_its_neighbours_is_still_a_body():
    edited = START.replace(
        "    print(total)\n", "    for x in shard(range(10)):\n        total += x\n    return total\n"
    )
    assert code_of(edited, 3)[1] == "    for x in shard(range(10)):\n        total += x\n    return total"
    repeated = START.replace('    print("start")\n', "    rank = setup()\n    total = 0\n")
    assert code_of(repeated, 3)[0].startswith("    rank = setup()\n    total = 0\n")


def test_a_region_whose_comment_is_gone_does_not_take_its_twins():
    source = SOURCE.replace("again:", "again: at the end.").replace(
        "    return total",
        """\
    # TODO 3, again: at last.
    ### BEGIN SOLUTION
    bye()
    ### END SOLUTION
    return total""",
    )
    edited = todo_regions.compose(source).replace("    # TODO 3, again: at the end.\n", "")
    lines = edited.split("\n")
    code = [lines[place.start - 1] for place in todo_regions.locate(source, edited)[3]]
    assert code == ['    print("start")', "    print(total)", '    raise NotImplementedError("TODO 3")']


def test_code_added_below_a_body_belongs_to_it():
    edited = START.replace('("TODO 2")\n', '("TODO 2")\n\n\ndef helper():\n    return 1\n')
    assert "def helper" in code_of(edited, 2)[0]
    assert todo_regions.attempted(SOURCE, edited, 2)


def test_a_given_line_below_a_body_that_is_changed_a_little_does_not_belong_to_it():
    edited = START.replace("    return total\n", "    return totals\n").replace("    total = 0\n", "    total = \n")
    assert code_of(edited, 3) == ['    print("start")\n\n    # as many times as there are ranks', "    print(total)"]
    assert [change.text for change in changes.changed_elsewhere(SOURCE, edited)] == ["“total =”", "“return totals”"]


@pytest.mark.parametrize(
    "old, new, told",
    [
        ("in shard(range(10)):\n", "in shard(range(10)):  # each rank\n", []),
        ("    total = 0\n", "", [("“total = 0” is missing", True)]),
        ("        total += x\n", "    total += x\n", [("“total += x”, indented differently", True)]),
        (
            "        total += x\n",
            "        if x:\n            total += x\n",
            [("“if x:”", True), ("“total += x”", False)],
        ),
        ("    return total\n", "    return total\n\n\nprint(1)\n", [("“print(1)”", False)]),
    ],
)
def test_given_lines_are_told_from_added_ones(old, new, told):
    edited = START.replace(old, new)
    assert edited != START
    found = changes.changed_elsewhere(SOURCE, edited)
    assert sorted((change.text, change.given) for change in found) == sorted(told)


@pytest.mark.parametrize(
    ("old", "new", "todo"),
    [
        ("    total = 0\n", "    total = (0\n", None),
        ("    return total\n", "    retrun total\n", None),
        ("        total += x\n", "        total += \n", None),
        ('    print("start")\n', '    print("start"\n', 3),
        ('    print("start")\n\n', "    for rank in range(2):\n", 3),
        ("    print(total)\n", "    if rank == 0:\n", 3),
        ("    print(total)\n", "print(total, rank)\n", 3),
        ('    raise NotImplementedError("TODO 2")\n', "", 2),
        ("    rank = setup()\n", "    rank = setup()\n  rank = 0\n", None),
        ("    total = 0\n", "\ttotal = 0\n", None),
    ],
)
def test_who_is_to_blame_for_what_is_no_python(old, new, todo):
    edited = START.replace(old, new)
    with pytest.raises(SyntaxError) as caught:
        compile(edited, "x.py", "exec")
    assert changes.todo_to_blame(SOURCE, edited, caught.value.lineno) == todo


def test_a_deleted_body_is_an_empty_range_and_an_attempt():
    edited = START.replace("    print(total)\n", "")
    assert code_of(edited, 3)[1] == ""
    assert todo_regions.attempted(SOURCE, edited, 3)


def test_only_code_makes_an_attempt():
    commented = START.replace("    return 0\n", "    # I think\n\n    return  0  # zero\n    # that is all\n")
    assert not todo_regions.attempted(SOURCE, commented, 1)
    assert todo_regions.attempted(SOURCE, START.replace("return 0", "return 1"), 1)
    directive = todo_regions.compose(BATCH)
    assert not todo_regions.attempted(BATCH, directive.replace("gpu:1", "gpu:1\n# four?"), 1)
    assert todo_regions.attempted(BATCH, directive.replace("gpu:1", "gpu:4"), 1)


def test_todo_at_knows_given_code():
    for number, line in enumerate(START.split("\n"), start=1):
        expected = {"return 0": 1, 'raise NotImplementedError("TODO 2")': 2, 'print("start")': 3, "print(total)": 3}
        if line.strip() and not line.strip().startswith("#"):
            assert todo_regions.todo_at(SOURCE, START, number) == expected.get(line.strip()), line


def test_anything_at_all_can_be_located():
    for edited in ("", "\n\n", "x = (", "# TODO 3: Print once.", "\n".join(reversed(START.split("\n")))):
        places = todo_regions.locate(SOURCE, edited)
        assert [len(ranges) for ranges in places.values()] == [1, 1, 2]
        assert isinstance(todo_regions.attempted(SOURCE, edited, 1), bool)


def test_normalise_drops_comments_but_not_hashes_in_strings():
    assert todo_regions.normalise("x = '# no'  # yes\n\n    # gone\n    y  =  f( a,b )") == ["x='#no'", "y=f(a,b)"]
    assert todo_regions.normalise("#SBATCH --nodes=2\n# words") == ["#SBATCH--nodes=2"]
    assert todo_regions.normalise("if x:  # unfinished (\n    # gone\n    f(") == ["ifx:#unfinished(", "f("]
