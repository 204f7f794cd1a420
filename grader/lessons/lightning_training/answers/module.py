"""Other answers to TODOs 1 to 3 of lightning_training."""

from grader.kit import Answer

WRONG = [
    Answer(
        1,
        "in evaluation mode, and left there",
        "self.model.eval()\nreturn self.model(x, y)",
        says="self, which it is given, is left in evaluation mode",
    ),
    Answer(
        2,
        "a rate for all ranks together",
        swap=("lr=self.args.lr", "lr=self.args.lr * self.trainer.world_size"),
        says="the learning rate on each of two ranks is 0.02",
    ),
    Answer(
        2,
        "a schedule",
        """
        kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[self.args.optimizer]
        optimizer = kind(self.parameters(), lr=self.args.lr, weight_decay=self.args.weight_decay)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]
        """,
        says="after two epochs",
    ),
    Answer(1, "nothing is returned", "loss = self.model(x, y)", says="training_step returns None"),
    Answer(1, "logits for a loss", "return self.model(x)", says="no loss"),
    Answer(1, "a number, without its graph", "return self.model(x, y).item()", says="no loss"),
    Answer(1, "detached", "return self.model(x, y).detach()", says="no graph"),
    Answer(
        1,
        "backward called by hand",
        """
        loss = self.model(x, y)
        loss.backward()
        return loss
        """,
        says="calls backward",
    ),
    Answer(
        1,
        "the step made by hand",
        """
        loss = self.model(x, y)
        gradients = torch.autograd.grad(loss, list(self.parameters()), retain_graph=True)
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters(), gradients, strict=True):
                parameter -= self.args.lr * gradient
        return loss
        """,
        says="optimizer's step itself",
    ),
    Answer(1, "the word itself is predicted", "return self.model(x, x)", says="mean loss"),
    Answer(1, "a sum, not a mean", "return self.model(x, y) * y.numel()", says="mean loss"),
    Answer(1, "the module called, which has no forward", "return self(x, y)"),
    Answer(
        1,
        "logs the loss over all ranks",
        """
        loss = self.model(x, y)
        self.log("train_loss", loss, sync_dist=True)
        return loss
        """,
        says="one more all-reduce",
    ),
    Answer(2, "no optimizer", "return None", says="returns None"),
    Answer(
        2,
        "always AdamW",
        """
        return torch.optim.AdamW(self.parameters(), lr=self.args.lr, weight_decay=self.args.weight_decay)
        """,
        says="--optimizer sgd",
    ),
    Answer(2, "Adam for AdamW", swap=("optim.AdamW,", "optim.Adam,"), says="different weights"),
    Answer(
        2, "the weight decay forgotten", swap=(", weight_decay=self.args.weight_decay", ""), says="different weights"
    ),
    Answer(2, "the learning rate of an example", swap=("self.args.lr", "1e-3")),
    Answer(2, "only the blocks are trained", swap=(".parameters", ".model.blocks.parameters"), says="parameters"),
    Answer(
        3,
        "the mean of batch means, of all ranks",
        """
        self.log_dict({"total": self.model(x, y), "count": 1.0}, sync_dist=True)
        """,
        says="not the mean over all tokens",
    ),
    Answer(
        3,
        "this rank's sums",
        """
        count = (y != IGNORE).sum().double()
        self.log_dict({"total": self.model(x, y) * count, "count": count}, reduce_fx="sum")
        """,
    ),
    Answer(
        3,
        "Lightning's own mean, weighed by tokens: the mean count is cut to a whole number",
        """
        self.log("total", self.model(x, y), batch_size=int((y != IGNORE).sum()), sync_dist=True)
        self.log("count", 1.0)
        """,
    ),
    Answer(
        3,
        "weighed by samples, as Lightning guesses",
        """
        self.log_dict({"total": self.model(x, y), "count": 1.0}, batch_size=len(x), sync_dist=True)
        """,
    ),
    Answer(
        3,
        "means of sums",
        """
        count = (y != IGNORE).sum().double()
        self.log_dict({"total": self.model(x, y) * count, "count": count}, sync_dist=True)
        """,
    ),
    Answer(
        3,
        "filled-up targets counted",
        """
        count = torch.tensor(float(y.numel()))
        self.log_dict({"total": self.model(x, y) * count, "count": count}, reduce_fx="sum", sync_dist=True)
        """,
        says="tokens, there are",
    ),
    Answer(
        3,
        "only one of the two is synchronised",
        """
        count = (y != IGNORE).sum().double()
        self.log("total", self.model(x, y) * count, reduce_fx="sum", sync_dist=True)
        self.log("count", count, reduce_fx="sum")
        """,
    ),
    Answer(
        3,
        "synchronised in every step, though ranks have unequal numbers of them",
        swap=("on_step=False,", "on_step=True,"),
        says="rank",
    ),
    Answer(
        3,
        "reduced by hand in every step",
        """
        import torch.distributed as dist
        sums = torch.stack([self.model(x, y) * (y != IGNORE).sum(), (y != IGNORE).sum()])
        dist.all_reduce(sums)
        self.log_dict({"total": sums[0], "count": sums[1]}, reduce_fx="sum")
        """,
        says="never come",
    ),
    Answer(
        3,
        "logged under another name",
        """
        count = (y != IGNORE).sum().double()
        self.log_dict({"val_total": self.model(x, y) * count, "val_count": count}, reduce_fx="sum", sync_dist=True)
        """,
        says="both sums",
    ),
    Answer(1, "a share of the loss", "return self.model(x, y) / self.trainer.world_size", says="the mean loss"),
    Answer(
        2,
        "norms are not trained",
        swap=("return kind(self.parameters(),", "return kind([p for p in self.parameters() if p.dim() > 1],"),
    ),
    Answer(
        3,
        "samples in place of tokens",
        swap=("count = (y != IGNORE).sum().double()", "count = torch.tensor(len(y), dtype=torch.float64)"),
    ),
    Answer(
        1,
        "detached, and given a graph of its own",
        "x, y = batch\nreturn self.model(x, y).detach().requires_grad_()",
        says="the graph ends before the model",
    ),
    Answer(
        3,
        "a batch without a target counts one",
        swap=(".sum().double()", ".sum().clamp(min=1).double()"),
        says="total / count",
    ),
    Answer(1, "every second batch", "return self.model(x, y) if batch_index % 2 == 0 else None"),
    Answer(
        2,
        "no decay is the default decay",
        swap=("weight_decay=self.args.weight_decay", "weight_decay=self.args.weight_decay or 0.01"),
        says="with --optimizer adamw --lr 0.1 --weight-decay 0,",
    ),
    Answer(
        3,
        "sums times the ranks",
        swap=("(y != IGNORE).sum().double()", "(y != IGNORE).sum().double() * self.trainer.world_size"),
        says="has logged a count of",
    ),
]


RIGHT = [
    Answer(1, "a dictionary", 'return {"loss": self.model(x, y=y)}'),
    Answer(
        1,
        "logged besides",
        """
        loss = self.model(*batch)
        self.log("train_loss", loss)
        return loss
        """,
    ),
    Answer(
        2,
        "in a list, and one parameter group by hand",
        """
        args = self.args
        groups = [{"params": list(self.model.parameters()), "lr": args.lr, "weight_decay": args.weight_decay}]
        return [torch.optim.AdamW(groups) if args.optimizer == "adamw" else torch.optim.SGD(groups, lr=args.lr)]
        """,
    ),
    Answer(
        3,
        "one at a time, in float32",
        """
        count = (y != IGNORE).sum().float()
        self.log("total", self.model(x, y) * count, reduce_fx=torch.sum, sync_dist=True, on_epoch=True)
        self.log("count", count, reduce_fx=torch.sum, sync_dist=True, on_epoch=True)
        """,
    ),
    Answer(
        3,
        "two metrics of torchmetrics, which keep the sums",
        """
        from torchmetrics import SumMetric
        if batch_index == 0:
            for name in ("total", "count"):
                object.__setattr__(self, name, SumMetric().to(x.device))
        count = (y != IGNORE).sum()
        self.total.update(self.model(x, y) * count)
        self.count.update(count)
        self.log("total", self.total, metric_attribute="total")
        self.log("count", self.count, metric_attribute="count")
        """,
    ),
    Answer(1, "a dictionary", 'return {"loss": self.model(x, y)}'),
    Answer(1, "forward called by name, with keywords", "return self.model.forward(x=x, y=y)"),
    Answer(
        1,
        "from the logits",
        """
        logits = self.model(x)
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten(), ignore_index=IGNORE)
        """,
    ),
    Answer(
        2,
        "a list of one optimizer",
        """
        kind = torch.optim.AdamW if self.args.optimizer == "adamw" else torch.optim.SGD
        return [kind(self.parameters(), lr=self.args.lr, weight_decay=self.args.weight_decay)]
        """,
    ),
    Answer(
        3,
        "two logs",
        """
        count = (y != IGNORE).sum().double()
        how = {"reduce_fx": "sum", "sync_dist": True, "on_step": False, "on_epoch": True}
        self.log("count", count, **how)
        self.log("total", self.model(x, y).double() * count, **how)
        """,
    ),
]
