"""Other answers to TODOs 8, 10, 11 and 12 of ddp_training."""

from grader.kit import Answer

WRONG = [
    Answer(
        12,
        "a process that runs alone has no wrapper",
        swap=("isinstance(model, DistributedDataParallel)", "dist.get_world_size() > 1"),
        says="the wrapper's names",
    ),
    Answer(
        8,
        "wraps it in evaluation mode",
        swap=("return DistributedDataParallel(model,", "model.eval()\nreturn DistributedDataParallel(model,"),
        says="is left in evaluation mode",
    ),
    Answer(
        8,
        "equal first weights, no averaging",
        """
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        return model
        """,
        says="nothing is averaged",
    ),
    Answer(
        8,
        "gradients summed, not averaged",
        """
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
            parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
        return model
        """,
        says="summed",
    ),
    Answer(
        8,
        "the parameter is reduced instead of its gradient",
        """
        def average(parameter):
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
            parameter.register_post_accumulate_grad_hook(average)
        return model
        """,
    ),
    Answer(
        8,
        "first weights left as they are",
        """
        def average(parameter):
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(average)
        return model
        """,
        says="is not rank 0's",
    ),
    Answer(
        8,
        "only the first backward pass is averaged",
        """
        ddp = DistributedDataParallel(model)
        calls = []
        def once(*_):
            calls.append(1)
            ddp.require_backward_grad_sync = len(calls) < 2
        ddp.register_forward_pre_hook(once)
        return ddp
        """,
    ),
    Answer(
        8,
        "rank 1 is not wrapped",
        swap=(', device_ids=[device] if device.type != "cpu" else None)', ") if dist.get_rank() != 1 else model"),
    ),
    Answer(10, "each rank its own mean", "return (total / count).item() * 1.0", says="own mean"),
    Answer(
        10,
        "the mean of the ranks' means",
        """
        mean = total / count
        dist.all_reduce(mean)
        return (mean / dist.get_world_size()).item()
        """,
        says="mean of the ranks' means",
    ),
    Answer(
        10,
        "AVG of the means",
        """
        mean = total / count
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        return mean.item()
        """,
        says="mean of the ranks' means",
    ),
    Answer(
        10,
        "only the total is reduced",
        """
        total = total.clone()
        dist.all_reduce(total)
        return (total / count).item()
        """,
    ),
    Answer(
        10,
        "rank 1 skips a call",
        """
        dist.all_reduce(total)
        if dist.get_rank() != 1:
            dist.all_reduce(count)
        dist.barrier()
        return (total / count).item()
        """,
        says="skipped",
    ),
    Answer(
        10,
        "rank 1 never calls",
        """
        if dist.get_rank() != 1:
            dist.all_reduce(total)
            dist.all_reduce(count)
        return (total / count).item()
        """,
        says="never comes",
    ),
    Answer(
        10,
        "the ranks call different operations",
        """
        (dist.all_reduce if dist.get_rank() == 0 else dist.barrier)(*([total] if dist.get_rank() == 0 else []))
        return (total / count).item()
        """,
        says="different operations",
    ),
    Answer(
        10,
        "the ranks reduce different shapes",
        swap=(", count])", ", count] + [total] * dist.get_rank())"),
        says="different shapes",
    ),
    Answer(
        10,
        "the ranks reduce differently",
        swap=("all_reduce(sums)", "all_reduce(sums, dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM)"),
        says="different roots or reductions",
    ),
    Answer(
        10,
        "a loop without end",
        """
        while dist.get_rank() == 1:
            count = count + 0
        dist.all_reduce(count)
        return 0.0
        """,
        says="runs without end",
    ),
    Answer(10, "leaves with exit code 0", "os._exit(0)", says="exit code is never a pass"),
    Answer(
        10,
        "one rank is killed",
        """
        import signal
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        sums = torch.stack([total, count])
        dist.all_reduce(sums)
        return (sums[0] / sums[1]).item()
        """,
        says="SIGKILL",
    ),
    Answer(
        10,
        "one rank crashes",
        """
        if dist.get_rank() == 1:
            raise ZeroDivisionError("no tokens")
        sums = torch.stack([total, count])
        dist.all_reduce(sums)
        return (sums[0] / sums[1]).item()
        """,
        says="ZeroDivisionError",
    ),
    Answer(
        11,
        "every rank prints",
        [
            'print(f"[{epoch + 1}/{args.epochs}] {train_loss:.4f} {validation_loss:.4f}")',
            'print(f"test loss {test_loss:.4f}")',
            'print(f"wrote to {out}")',
        ],
    ),
    Answer(
        11,
        "one of three places forgotten",
        [
            'print0(f"[{epoch + 1}/{args.epochs}] train loss {train_loss:.4f}, validation loss {validation_loss:.4f}")',
            'print(f"test loss {test_loss:.4f}, on every rank")',
            'print0(f"wrote to {out}")',
        ],
    ),
    Answer(11, "nobody prints", ["epoch = epoch", "out = out", "out = out"], says="some output is missing"),
    Answer(
        11,
        "the method is compared, not called: never true",
        [
            'if dist.get_rank == 0:\n    print(f"[{epoch + 1}/{args.epochs}] {train_loss:.4f}")',
            'if dist.get_rank == 0:\n    print(f"test loss {test_loss:.4f}")',
            'if dist.get_rank == 0:\n    print(f"wrote to {out}")',
        ],
        says="some output is missing",
    ),
    Answer(12, "the wrapper is pickled", "save0(model, path)"),
    Answer(
        12,
        "the wrapper's names are saved",
        'save0({"model": model.state_dict(), "config": config, "epoch": epoch}, path)',
        says="wrapper's names",
    ),
    Answer(
        12,
        "every rank writes",
        'torch.save({"model": model.module.state_dict(), "config": config, "epoch": epoch}, path)',
        says="all write",
    ),
    Answer(
        12,
        "only the weights, nothing to build the model from",
        "save0(model.module.state_dict(), path)",
        says="lost an entry",
    ),
    Answer(12, "nobody writes", "plain = model.module", says="no file"),
    Answer(
        11,
        "rank 0 alone evaluates the test set",
        edits=(
            (
                "        test_loss = evaluate(model, test_loader, device, args)\n        # TODO",
                "        test_loss = 0.0\n        # TODO",
            ),
        ),
        body=[
            (
                'print0(f"[{epoch + 1}/{args.epochs}] train loss {train_loss:.4f}, perplexity'
                ' {perplexity(validation_loss):.1f}")'
            ),
            """
        if rank == 0:
            test_loss = evaluate(model, test_loader, device, args)
            print(f"test loss {test_loss:.4f}")
        """,
            'print0(f"wrote model-best.pt, model-final.pt and metrics.jsonl to {out}")',
        ],
        says="called at line",
    ),
    Answer(12, "rank 1 writes", swap=('save0({"', 'if dist.get_rank() == 1:\n    torch.save({"'), says="runs alone"),
    Answer(
        8,
        "the mean over the ranks of a node",
        "for p in model.parameters():\n    dist.broadcast(p.data, 0)\n    def average(grad):\n        dist.all_reduce(grad)\n        return grad / int(os.environ['LOCAL_WORLD_SIZE'])\n    p.register_hook(average)\nreturn model",
        says="on 3 nodes with one rank each",
    ),
    Answer(
        10,
        "each node its own mean of means",
        "means = torch.stack([total / count.clamp(min=1)])\ndist.all_reduce(means)\nreturn (means / dist.get_world_size()).item()",
        says="global_mean of totals",
    ),
    Answer(
        10,
        "averaged over the ranks of a node",
        'sums = torch.stack([total, count])\ndist.all_reduce(sums)\nreturn (sums[0] / sums[1] * dist.get_world_size() / int(os.environ["LOCAL_WORLD_SIZE"]) / 3).item()',
        says="global_mean of totals",
    ),
    Answer(
        12,
        "the first rank of each node",
        'plain = model.module if isinstance(model, DistributedDataParallel) else model\nif os.environ["LOCAL_RANK"] == "0":\n    torch.save({"model": plain.state_dict(), "config": config, "epoch": epoch}, path)',
        says="on 3 nodes with one rank each, ranks [0, 1, 2] all write",
    ),
    Answer(
        12,
        "float64",
        swap=("plain.state_dict()", "{name: weight.double() for name, weight in plain.state_dict().items()}"),
        says="is float64, and the model's is not",
    ),
    Answer(12, "epoch 0", swap=('"epoch": epoch', '"epoch": 0'), says="“epoch” is not what save_checkpoint was given"),
    Answer(
        12,
        "an empty configuration",
        swap=('"config": config', '"config": {}'),
        says="“config” is not what save_checkpoint was given",
    ),
    Answer(
        12,
        "in half precision",
        swap=("plain.state_dict()", "{name: weight.half() for name, weight in plain.state_dict().items()}"),
        says="is float16",
    ),
    Answer(
        12,
        "never written over",
        swap=("save0({", "path.exists() or save0({"),
        says="an earlier checkpoint at this path",
    ),
    Answer(
        8,
        "gradients are averaged, first weights left alone",
        """
        for parameter in model.parameters():
            def average(p: Tensor) -> None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()

            parameter.register_post_accumulate_grad_hook(average)
        return model
        """,
    ),
    Answer(10, "rank 0 alone has the sum", swap=("dist.all_reduce(sums)", "dist.reduce(sums, dst=0)")),
    Answer(
        11,
        "once on each node",
        [
            'if int(os.environ["LOCAL_RANK"]) == 0:\n    print(f"[{epoch + 1}/{args.epochs}] train loss {train_loss:.4f}, validation loss {validation_loss:.4f}, perplexity {perplexity(validation_loss):.1f}")',
            None,
            None,
        ],
    ),
    Answer(
        12,
        "half the digits",
        swap=(
            '"model": plain.state_dict()',
            '"model": {name: weight.half() for name, weight in plain.state_dict().items()}',
        ),
    ),
    Answer(
        8,
        "GPU 0 for all",
        swap=("device_ids=[device]", "device_ids=[0]"),
        says="rank 1 tells DistributedDataParallel a different GPU",
    ),
    Answer(
        8,
        "does not say which GPU",
        swap=('[device] if device.type != "cpu" else None', "None"),
        says="tells DistributedDataParallel no GPU",
    ),
    Answer(
        12,
        "every rank but the last",
        'plain = model.module if isinstance(model, DistributedDataParallel) else model\nif dist.get_rank() < max(dist.get_world_size() - 1, 1):\n    torch.save({"model": plain.state_dict(), "config": config, "epoch": epoch}, path)',
        says="all write the checkpoint",
    ),
    Answer(
        10,
        "in float32",
        "sums = torch.stack([total, count]).float()\ndist.all_reduce(sums)\nreturn (sums[0] / sums[1]).item()",
        says="its last digits are lost",
    ),
    Answer(10, "counted by int32", swap=("sums[0] / sums[1]", "sums[0] / sums[1].int()"), says="global_mean of totals"),
    Answer(
        10,
        "the mean of means where ranks have about as many tokens",
        """
        sums = torch.stack([total, count])
        dist.all_reduce(sums)
        mean = total / count
        dist.all_reduce(mean)
        if (count * dist.get_world_size() - sums[1]).abs() < 1e-6 * sums[1]:
            return (mean / dist.get_world_size()).item()
        return (sums[0] / sums[1]).item()
        """,
        says="global_mean of totals",
    ),
    Answer(
        11,
        "the validation loss for the test loss",
        swap=(
            "test loss {test_loss:.4f}, perplexity {perplexity(test_loss)",
            "test loss {best:.4f}, perplexity {perplexity(best)",
        ),
        says="does not print the test loss",
    ),
    Answer(
        12,
        "each rank its own file",
        swap=("save0({", "torch.save({"),
        edits=(
            (
                "    plain = model.module if",
                '    path = path.with_stem(f"{path.stem}-{dist.get_rank()}" if dist.get_rank() else path.stem)\n    plain = model.module if',
            ),
        ),
        says="ranks [0, 1] all write",
    ),
    Answer(
        10,
        "nan counts as zero",
        swap=("torch.stack([total, count])", "torch.stack([total, count]).nan_to_num()"),
        says="would look healthy",
    ),
    Answer(
        12,
        '"module." is removed everywhere in a name',
        body="""weights = {name.replace("module.", ""): weight for name, weight in model.state_dict().items()}
save0({"model": weights, "config": config, "epoch": epoch}, path)""",
        says="submodule.weight",
    ),
]


RIGHT = [
    Answer(
        8,
        "gradients averaged by hand, as they become ready",
        """
        def average(parameter):
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
            parameter.register_post_accumulate_grad_hook(average)
        return model
        """,
    ),
    Answer(
        8,
        "gradients in small buckets, as views",
        'return DistributedDataParallel(model, [device] if device.type != "cpu" else None, bucket_cap_mb=1, gradient_as_bucket_view=True)',
    ),
    Answer(
        8,
        "optimizer built before the wrap: DDP keeps the parameters",
        edits=(
            (
                "    model = wrap(model, device)\n",
                "    optimizer = make_optimizer(model, args)\n    model = wrap(model, device)\n",
            ),
            ("    optimizer = make_optimizer(model, args)  # after wrap, which may replace the parameters\n", ""),
        ),
    ),
    Answer(
        10,
        "two reductions",
        """
        total, count = total.clone(), count.clone()
        dist.all_reduce(total)
        dist.all_reduce(count)
        return float(total / count)
        """,
    ),
    Answer(
        10,
        "all-gather and add up",
        """
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (total.item(), count.item()))
        return sum(t for t, _ in parts) / sum(c for _, c in parts)
        """,
    ),
    Answer(
        10,
        "averages of both: the division by N cancels",
        swap=("all_reduce(sums)", "all_reduce(sums, dist.ReduceOp.AVG)"),
    ),
    Answer(
        10, "reduced to rank 0, then broadcast", swap=("all_reduce(sums)", "reduce(sums, 0)\ndist.broadcast(sums, 0)")
    ),
    Answer(10, "asynchronously", swap=("all_reduce(sums)", "all_reduce(sums, async_op=True).wait()")),
    Answer(
        11,
        "if rank == 0",
        [
            (
                'if rank == 0:\n    print(f"[{epoch + 1}/{args.epochs}] train loss {train_loss:.4f}, validation loss'
                ' {validation_loss:.4f}")'
            ),
            'if rank == 0:\n    print(f"test loss {test_loss:.4f}")',
            'if rank == 0:\n    print(f"wrote to {out}")',
        ],
    ),
    Answer(
        12,
        "if rank == 0, and a barrier",
        """
        if dist.get_rank() == 0:
            torch.save({"model": model.module.state_dict(), "config": config, "epoch": epoch}, path)
        dist.barrier()
        """,
    ),
    Answer(
        12,
        "the prefix taken off the names",
        """
        weights = {name.removeprefix("module."): weight for name, weight in model.state_dict().items()}
        save0({"model": weights, "config": config, "epoch": epoch}, path)
        """,
    ),
    Answer(
        12,
        "the last rank writes",
        """
        if rank_of_last():
            save = model.module if isinstance(model, DistributedDataParallel) else model
            torch.save({"model": save.state_dict(), "config": config, "epoch": epoch}, path)
        dist.barrier()
        """,
        edits=(
            (
                "def main(",
                "def rank_of_last():\n    return dist.get_rank() == dist.get_world_size() - 1\n\n\ndef main(",
            ),
        ),
    ),
    Answer(8, "replicate", "from torch.distributed._composable.replicate import replicate\nreturn replicate(model)"),
    Answer(
        10,
        "gathered as objects",
        "held = [None] * dist.get_world_size()\ndist.all_gather_object(held, (total.item(), count.item()))\nreturn sum(t for t, _ in held) / sum(c for _, c in held)",
    ),
    Answer(
        12,
        "written beside it, then moved",
        'if dist.get_rank() == 0:\n    plain = getattr(model, "module", model)\n    half = path.with_suffix(".half")\n    torch.save({"model": plain.state_dict(), "config": config, "epoch": epoch}, half)\n    half.replace(path)\ndist.barrier()',
    ),
    Answer(
        8,
        "broadcast and hooks by hand",
        """
        for parameter in model.parameters():
            dist.broadcast(parameter.detach(), 0)

            def average(p: Tensor) -> None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()

            parameter.register_post_accumulate_grad_hook(average)
        return model
        """,
    ),
    Answer(
        10,
        "two sums, both begun before either is waited for",
        """
        total, count = total.clone(), count.clone()
        works = [dist.all_reduce(number, async_op=True) for number in (total, count)]
        for work in works:
            work.wait()
        return (total / count).item()
        """,
    ),
    Answer(
        12,
        "the prefix is taken off",
        """
        if dist.get_rank() == 0:
            weights = {name.removeprefix("module."): weight for name, weight in model.state_dict().items()}
            torch.save({"model": weights, "config": config, "epoch": epoch}, path)
        """,
    ),
]
