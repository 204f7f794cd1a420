"""Other answers to TODOs 1 to 3 of expert_training."""

from grader.kit import Answer

NAMES = 'mesh_dim_names=("data", "expert")'


WRONG = [
    # TODO 1
    Answer(
        1,
        "the axes swapped: the ranks of a row are on several nodes",
        [f"return init_device_mesh(device.type, (args.ep, world_size // args.ep), {NAMES})"],
        says="the grid is",
    ),
    Answer(
        1,
        "columns have all experts",
        [
            f"""
        from torch.distributed.device_mesh import DeviceMesh as Mesh
        return Mesh(device.type, torch.arange(world_size).view(args.ep, -1).T.contiguous(), {NAMES})
        """
        ],
        says="consecutive numbers",
    ),
    Answer(1, "the names swapped", swap=('("data", "expert")', '("expert", "data")'), says="are called expert"),
    Answer(1, "nothing", ["return None"], says="returns None"),
    # TODO 2
    Answer(
        2, "in the tokens' dtype", swap=("h_ND.float() @ self.weight.float().T", "h_ND @ self.weight.to(h_ND.dtype).T")
    ),
    Answer(
        2,
        "the softmax in float32, of products that are not",
        swap=("(h_ND.float() @ self.weight.float().T)", "(h_ND @ self.weight.to(h_ND.dtype).T).float()"),
        says="probabilities",
    ),
    Answer(2, "without the bias", swap=("(probs_NE + self.bias)", "probs_NE"), says="without the bias"),
    Answer(
        2,
        "the bias in the gates",
        swap=("probs_NE.gather(1, experts_NK)", "(probs_NE + self.bias).gather(1, experts_NK)"),
        says="what the router returns as gates",
    ),
    Answer(
        2,
        "the bias in the probabilities",
        swap=("return gates_NK, experts_NK, probs_NE", "return gates_NK, experts_NK, probs_NE + self.bias"),
        says="the probabilities with the bias",
    ),
    Answer(
        2,
        "the bias in the logits",
        swap=("self.weight.float().T)", "self.weight.float().T + self.bias)"),
        says="probabilities",
    ),
    Answer(
        2,
        "the least probable experts",
        swap=("descending=True", "descending=False"),
        says="what the router returns as experts",
    ),
    Answer(
        2,
        "of equal sums the higher number",
        swap=(
            "(probs_NE + self.bias).argsort(dim=-1, descending=True, stable=True)[:, : self.k]",
            "(probs_NE + self.bias).argsort(dim=-1, stable=True).flip(-1)[:, : self.k]",
        ),
        says="what the router returns as experts",
    ),
    Answer(2, "gates of 1 with one expert", swap=("if self.k > 1", "if self.k > 0"), says="cannot learn"),
    Answer(2, "gates that are not divided", swap=("if self.k > 1", "if self.k > 9"), says="not divided"),
    Answer(
        2,
        "no gradient through the gates",
        swap=("probs_NE.gather(1, experts_NK)", "probs_NE.detach().gather(1, experts_NK)"),
        says="no gradient of the gates",
    ),
    Answer(
        2,
        "divided by a sum without its gradient",
        swap=("gates_NK.sum(dim=-1, keepdim=True)", "gates_NK.sum(dim=-1, keepdim=True).detach()"),
        says="the gradient of the gates",
    ),
    # TODO 3
    Answer(
        3,
        "the first expert for all",
        ["return self.experts(h_ND, [len(h_ND)] + [0] * (len(list(self.experts.children())) - 1))"],
    ),
    Answer(3, "tokens travel to all ranks", swap=("self.n_experts, self.row)", "self.n_experts, None)")),
    Answer(
        3,
        "gates without their gradient",
        swap=("rows_RD, counts), gates_NK, way", "rows_RD, counts), gates_NK.detach(), way"),
        says="gradient of gates",
    ),
    Answer(
        3,
        "the gates applied twice",
        swap=("rows_RD, counts), gates_NK, way", "rows_RD, counts), gates_NK.square(), way"),
        says="output",
    ),
    Answer(3, "no gradient for the tokens", swap=("dispatch(h_ND", "dispatch(h_ND.detach()"), says="gradient of h"),
    Answer(
        3,
        "a rank without a token leaves",
        swap=("rows_RD, counts, way", "if not len(h_ND):\n    return h_ND * gates_NK.sum()\nrows_RD, counts, way"),
    ),
    Answer(
        3,
        "experts without a row are left out",
        swap=(
            "self.experts(rows_RD, counts)",
            "torch.cat([e(r) for e, r in zip(self.experts.children(), rows_RD.split(counts)) if len(r)] or [rows_RD])",
        ),
    ),
    Answer(
        3,
        "a rank to which no row comes does not compute",
        swap=(
            "return combine(self.experts(rows_RD, counts), gates_NK, way)",
            "if sum(counts):\n    rows_RD = self.experts(rows_RD, counts)\nreturn combine(rows_RD, gates_NK, way)",
        ),
        says="to which no row goes, does not call self.experts",
    ),
    Answer(
        3,
        "zeros as gradients of experts without a row, around their module",
        swap=(
            "return combine(self.experts(rows_RD, counts), gates_NK, way)",
            "nothing = sum(p.sum() for p in self.experts.parameters()) * 0\n"
            "results_RD = self.experts(rows_RD, counts) if len(rows_RD) else rows_RD + nothing\n"
            "return combine(results_RD, gates_NK, way)",
        ),
        says="does not call self.experts",
    ),
    Answer(
        3,
        "slots of no expert go to the first",
        swap=("experts_NK, self", "experts_NK.clamp(min=0), self"),
        says="output",
    ),
]


RIGHT = [
    Answer(
        1,
        "from a table of ranks",
        [f"return DeviceMesh(device.type, torch.arange(world_size).view(-1, args.ep), {NAMES})"],
    ),
    Answer(
        2,
        "by torch.sort, and a division that does nothing for one expert",
        [
            """
        logits = torch.nn.functional.linear(h_ND.to(torch.float32), self.weight.to(torch.float32))
        probs = torch.softmax(logits, dim=1)
        order = torch.sort(probs.detach() + self.bias, dim=1, descending=True, stable=True).indices
        experts = order[:, : self.k]
        gates = torch.take_along_dim(probs, experts, dim=1)
        return (gates if self.k == 1 else gates / gates.sum(1, True)), experts, probs
        """
        ],
    ),
    Answer(
        3,
        "one call after the other",
        [
            """
        arrived = dispatch(h_ND, experts_NK, n_experts=self.n_experts, group=self.row)
        results = self.experts(arrived[0], arrived[1])
        return combine(results, gates_NK, arrived[2])
        """
        ],
    ),
]
