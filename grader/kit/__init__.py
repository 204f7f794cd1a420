"""Everything that the checks of a lesson import: `from grader.kit import …`.

| for | take |
|-----|------|
| another answer, in a lesson's answers/ | `Answer` |
| a check and its verdict | `todo`, `Since` (a release of torch), `expect`, `Wrong`, `Fault`, `place`; `hinted`, for a part of a TODO with its own hint; `count_of`, for a number and its noun |
| numbers by class (negative, zero, ties, large, …), and which parameter is frozen | `numbers`, `unsorted`, `logits`, `LARGE`; `mixed_dtypes` of inputs and weights; `strided` and `columns`, not contiguous; `zeros_in_turn`, on one rank; `frozen_in_turn`; on a rank `freeze`, which leaves a gradient from before (of `STALE`s), and `is_stale` |
| sizes, by class: uneven, empty, fewer than ranks, … | `pipelines`, `rectangles`, `meshes`, `shares`, `ones_in_turn`, `lengths`, `nodes`, `layouts`; `without`, ranks that have nothing that counts |
| what must be refused, and what must not | on a rank `raised`; `check_refusals` |
| what each rank is given | `Private`; `student.draw`, `student.seeds` draw it, `student.premise` says what it must tell apart |
| a grid with a data axis and one more | `check_grids`, `check_row_samplers`; on a rank `dealt` |
| questions with a number as answer | `check_answers`; `check_story`, below a story's TODO; `answers_on_rank`, where they are compared otherwise; `same_numbers`, `a_number`, `written`, `both`; `known`, the mistake that gives all of these, and its premises, `named_apart` |
| the same tensor or not | `check_tensor`, `check_shape`; `near`, `close` (any dtype), `difference`, in words; `scale_of` a model's gradients, for those that vanish; `COPIED`, the hint where a tensor in channels_last was to be filled |
| two forward passes before their two backward passes | on a rank `crossed`; `CROSSED`, the hint |
| what a function has done to what it was given | on a rank `Given`; `check_given` |
| on a rank: what the student's code returned | `as_evidence`; `ranks_of` a process group; `kind_of`, in words |
| on a rank: what the judge is told | `mark`, `merciless_messages`, `next_world`, `sit_out`, `smaller_world`, `watch_products`; `record_files`, `record_training`, `elements` |
| on a rank: the most memory at a moment | `Peak` |
| files that a rank and its workers open, and bytes that it reads | on a rank `watch_reads`, `bytes_read`; `opened_by`, `most_read` |
| a model that ranks split | `drawn_sizes`, `drawn_model`, `drawn_batch`; on a rank `parameters`, `gradients`, `attempt`; `check_refused`, `check_part`, `check_parts`, `must_have_gradients`, `check_norm`, to `EXACT` |
| the script lessons' small model | `tiny_model` of `TINY`'s sizes, `tiny_batch`; on a rank `save_twice`, `saved_file`, `saved_files` |
| bytes that ranks send, and how often | `check_sent`, `check_calls`, `check_parts_travel`; `sent_by`, `moved_by`, `numbers_in`, `operations`, `ring_bytes` |
| what ranks did | `check_delivery`; `WAITING`, `PARTED`, `OWN_ZEROS` (hints for a deadlock, where ranks make different collectives, and where one has only zeros), `cases`, `collectives`, `rehearse`, `Run` |
| batch files, and what the schedulers would start; how a job ends; a file that is none of the course's | `batch_file`, `batch_header`, `stand_ins`, `check_launches`, `is_first_node`, `first_node`, `LOCAL`; `job_endings`; `Unit` |
| scripts as a whole | `corpus`, `training`, `reported`, `same_run`, `check_checkpoint`, `check_last_weights`, `check_dealt`, `each_once`, `one_writer`, `on_nodes`, `must_move`, `REL`, `SAME_WEIGHTS`; for a sharded model `mains_on_rank`, `together`, `losses`, `same_losses`, `same_report`, `plain_name` |
"""  # noqa: E501

from grader.engine.inside.changed_arguments import Given, plain_name
from grader.engine.inside.observe import Reporter, mark, merciless_messages, next_world, sit_out, smaller_world
from grader.engine.inside.matrix_products import watch_products
from grader.engine.inside.reads import bytes_read, watch_reads
from grader.engine.inside.recording import elements, record_files, record_training
from grader.engine.inside.return_values import kind_of
from grader.engine.jobs import batch_file, job_endings, batch_header, stand_ins
from grader.engine.judge.other_answers import Answer
from grader.engine.judge.student_in_checks import Student
from grader.engine.judge.verdict import Since, Wrong, count_of, expect, hinted, todo
from grader.engine.lesson.lessons import Unit
from grader.engine.ranks.diagnose import Fault, place
from grader.engine.ranks.job import Private
from grader.engine.ranks.evidence import whole
from grader.engine.ranks.message_rounds import Collective, cases, collectives, rehearse
from grader.engine.ranks.run import Run
from grader.kit.grids import check_grids, check_row_samplers
from grader.kit.launches import LOCAL, check_launches, first_node, is_first_node
from grader.kit.message_checks import OWN_ZEROS, PARTED, WAITING, check_delivery
from grader.kit.on_rank import (
    a_number,
    answers_on_rank,
    as_evidence,
    crossed,
    freeze,
    is_stale,
    mains_on_rank,
    plain,
    raised,
    ranks_of,
    saved_file,
    saved_files,
)
from grader.kit.predictions import both, check_answers, known, named_apart, same_numbers, written
from grader.kit.refusals import check_refusals
from grader.kit.reads import most_read, opened_by
from grader.kit.scripts import (
    REL,
    SAME_WEIGHTS,
    check_checkpoint,
    check_dealt,
    check_last_weights,
    corpus,
    each_once,
    losses,
    must_move,
    on_nodes,
    one_writer,
    reported,
    same_losses,
    same_report,
    same_run,
    together,
    training,
)
from grader.kit.drawn_sizes import layouts, lengths, meshes, nodes, ones_in_turn, pipelines, rectangles, shares, without
from grader.kit.stories import check_story
from grader.kit.split_model import (
    EXACT,
    check_norm,
    check_part,
    check_parts,
    check_refused,
    drawn_sizes,
    must_have_gradients,
)
from grader.kit.split_on_rank import attempt, dealt, drawn_batch, drawn_model, gradients, parameters
from grader.kit.tensors import (
    COPIED,
    CROSSED,
    check_given,
    check_shape,
    check_tensor,
    close,
    difference,
    name_of,
    near,
    scale_of,
)
from grader.kit.tiny_model import TINY, save_twice, tiny_batch, tiny_model
from grader.kit.traffic import (
    check_calls,
    check_parts_travel,
    check_sent,
    moved_by,
    numbers_in,
    operations,
    ring_bytes,
    sent_by,
)
from grader.kit.drawn_values import (
    LARGE,
    STALE,
    columns,
    frozen_in_turn,
    logits,
    mixed_dtypes,
    numbers,
    strided,
    unsorted,
    zeros_in_turn,
)
from utils.memory import Peak
