"""Other answers to TODOs 7 and 10 of 13_fewer_bytes."""

from grader.kit import Answer

WRONG = [
    Answer(
        7,
        "the mean of the weights, and no more",
        [
            "for p, mean in zip(self.parameters, mean_over_ranks(self.parameters), strict=True):\n    p.copy_(mean)",
            None,
            None,
            None,
        ],
        says="H = ",
    ),
    Answer(7, "away from the mean", swap=("delta = anchor - mean", "delta = mean - anchor"), says="H = 1"),
    Answer(
        7,
        "the sum of the ranks",
        swap=("delta = anchor - mean", "delta = anchor - mean * dist.get_world_size()"),
        says="H = 1",
    ),
    Answer(7, "no Nesterov", swap=("self.lr * (delta + self.momentum * velocity)", "self.lr * velocity")),
    Answer(7, "damped", swap=(".add_(delta)", ".add_(delta, alpha=1 - self.momentum)")),
    Answer(
        7,
        "the velocity after the step",
        swap=("velocity.mul_(self.momentum).add_(delta)\n", "\n"),
        edits=(
            (
                "            p.copy_(anchor)\n",
                "            p.copy_(anchor)\n            velocity.mul_(self.momentum).add_(delta)\n",
            ),
        ),
    ),
    Answer(7, "the anchor stays", swap=("anchor.sub_(", "anchor = anchor.sub("), says="exchange"),
    Answer(7, "the model stays", swap=("p.copy_(anchor)", "pass"), says="H = 1"),
    Answer(7, "the anchor is the model's memory", swap=("p.copy_(anchor)", "p.data = anchor"), says="exchange"),
    Answer(7, "the rate on the velocity", swap=(".add_(delta)", ".add_(self.lr * delta)"), says="exchange"),
    Answer(
        7,
        "a message for each parameter",
        swap=("means = mean_over_ranks(self.parameters)", "means = [mean_over_ranks([p])[0] for p in self.parameters]"),
        says="collectives",
    ),
    Answer(
        7,
        "no anchor is saved",
        swap=(
            ('for name in ("anchor", "velocity")}', 'for name in ("velocity",)}'),
            ('for name in ("anchor", "velocity"):', 'for name in ("velocity",):'),
        ),
        says="resumed",
    ),
    Answer(
        7,
        "no velocity is saved",
        swap=(
            ('for name in ("anchor", "velocity")}', 'for name in ("anchor",)}'),
            ('for name in ("anchor", "velocity"):', 'for name in ("anchor",):'),
        ),
        says="resumed",
    ),
    Answer(
        7,
        "the weights for the anchor",
        swap=(
            "setattr(self, name, [t.clone() for t in saved[name]])",
            "setattr(self, name, [t.clone() for t in saved[name]])\nself.anchor = [p.detach().clone() for p in self.parameters]",
        ),
        says="resumed",
    ),
    Answer(
        7,
        "the run's own memory is saved",
        swap=("[t.clone() for t in getattr(self, name)]", "list(getattr(self, name))"),
    ),
    Answer(7, "loaded without a copy", swap=("[t.clone() for t in saved[name]]", "list(saved[name])")),
    Answer(7, "times H", swap=("4 * parameters / h", "4 * parameters * h"), says="bytes_of_diloco"),
    Answer(
        10,
        "bits for bytes",
        swap=("run.nbytes / link.bandwidth", "8 * run.nbytes / link.bandwidth"),
        says="seconds are wrong",
    ),
    Answer(10, "latency once", swap=("run.messages * link.latency", "link.latency"), says="seconds are wrong"),
    Answer(10, "one step", swap=("run.steps * (run.compute", "(run.compute"), says="seconds are wrong"),
    Answer(10, "no computing", swap=("run.compute + ", ""), says="seconds are wrong"),
    Answer(10, "the slowest", swap=("return min(", "return max("), says="the wrong run"),
    Answer(
        10,
        "the fewest bytes",
        swap=("key=lambda name: seconds(runs[name], link)", "key=lambda name: runs[name].nbytes"),
        says="the wrong run",
    ),
    Answer(
        10,
        "the fewest steps",
        swap=("key=lambda name: seconds(runs[name], link)", "key=lambda name: runs[name].steps"),
        says="the wrong run",
    ),
    Answer(
        10,
        "bytes of one step",
        swap=("plain.steps * plain.nbytes - compressed.steps * compressed.nbytes", "plain.nbytes - compressed.nbytes"),
        says="worth_below",
    ),
    Answer(10, "negative bandwidths", swap=("if saved <= 0:\n    return 0.0\n", ""), says="worth_below"),
    Answer(
        10,
        "no infinity",
        swap=("math.inf if added <= 0 else saved / added", "0.0 if added <= 0 else saved / added"),
        says="worth_below",
    ),
    Answer(10, "upside down", swap=("saved / added", "added / saved"), says="worth_below"),
    Answer(
        10,
        "no latency in the crossing",
        swap=(
            ("seconds(compressed, Link(latency, math.inf))", "seconds(compressed, Link(0.0, math.inf))"),
            ("seconds(plain, Link(latency, math.inf))", "seconds(plain, Link(0.0, math.inf))"),
        ),
        says="worth_below",
    ),
]

RIGHT = [
    Answer(
        7,
        "torch's SGD outside",
        [
            """
            means = mean_over_ranks(self.parameters)
            outer = torch.optim.SGD(self.anchor, lr=self.lr, momentum=self.momentum, nesterov=self.momentum > 0)
            for mean, anchor, velocity in zip(means, self.anchor, self.velocity, strict=True):
                anchor.grad = anchor - mean
                outer.state[anchor]["momentum_buffer"] = velocity
            outer.step()
            for p, anchor in zip(self.parameters, self.anchor, strict=True):
                anchor.grad = None
                p.copy_(anchor)
            """,
            'return {"anchor": [t.clone() for t in self.anchor], "velocity": [t.clone() for t in self.velocity]}',
            """
            for mine, its in zip([*self.anchor, *self.velocity], [*saved["anchor"], *saved["velocity"]], strict=True):
                mine.copy_(its)
            """,
            None,
        ],
    ),
    Answer(
        10,
        "a loop, and a line",
        [
            "return run.steps * run.compute + run.steps * run.messages * link.latency + run.steps * run.nbytes / link.bandwidth",
            """
            best = None
            for name in runs:
                if best is None or seconds(runs[name], link) < seconds(runs[best], link):
                    best = name
            return best
            """,
            """
            def fixed(run):
                return run.steps * (run.compute + run.messages * latency)

            saved = plain.steps * plain.nbytes - compressed.steps * compressed.nbytes
            if saved <= 0:
                return 0.0
            added = fixed(compressed) - fixed(plain)
            return saved / added if added > 0 else math.inf
            """,
        ],
    ),
]
