"""Other answers to TODOs 9 to 11 of fsdp_training."""

from grader.kit import Answer

WRONG = [
    Answer(9, "rank 0's state dict", 'save0({"model": model.state_dict(), "config": config, "epoch": epoch}, path)'),
    Answer(
        9,
        "rank 0's parts",
        """
        parts = {name: part.to_local() for name, part in model.state_dict().items()}
        save0({"model": parts, "config": config, "epoch": epoch}, path)
        """,
        says="is a part of it",
    ),
    Answer(
        9,
        "rows of all ranks, where some have a copy of others'",
        """
        full = {}
        for name, value in model.state_dict().items():
            rows = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
            dist.gather_object(value.to_local().cpu(), rows, dst=0)
            if rows:
                full[name] = torch.cat(rows)
        save0({"model": full, "config": config, "epoch": epoch}, path)
        """,
        says="has more numbers than the model",
    ),
    Answer(
        9,
        "every rank writes",
        """
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        torch.save({"model": full, "config": config, "epoch": epoch}, path)
        """,
        says="all write",
    ),
    Answer(
        9,
        "rank 0 alone asks for the parts",
        """
        if dist.get_rank() == 0:
            full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
            torch.save({"model": full, "config": config, "epoch": epoch}, path)
        """,
        says="rank 0 waits",
    ),
    Answer(
        10,
        "one file, by rank 0",
        """
        weights, state = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        save0({"model": weights, "optimizer": state, "position": position}, folder / "all.pt")
        """,
        says="no checkpoint in the folder",
    ),
    Answer(
        10,
        "put together first",
        swap=("optimizer)", "optimizer, options=StateDictOptions(full_state_dict=True))"),
        says="state is assembled",
    ),
    Answer(
        10,
        "the weights alone",
        'dcp.save({"model": get_model_state_dict(model), "position": position}, checkpoint_id=folder)',
        says="optimizer's state",
    ),
    Answer(10, "the position is forgotten", swap=(', "position": position', ""), says="position is not in"),
    Answer(10, "rank 0 alone writes", swap=("dcp.save", "if dist.get_rank() == 0:\n    dcp.save")),
    Answer(11, "torch.load of a folder", "return torch.load(folder)", says="IsADirectoryError"),
    Answer(
        11,
        "the weights alone",
        """
        saved = {"model": get_model_state_dict(model), "position": position}
        dcp.load(saved, checkpoint_id=folder)
        return saved["position"]
        """,
        says="the optimizer's",
    ),
    Answer(
        11,
        "loaded into copies that nobody uses",
        """
        weights, state = get_state_dict(model, optimizer)
        saved = {"model": {name: weight.clone() for name, weight in weights.items()}, "optimizer": state, "position": position}
        dcp.load(saved, checkpoint_id=folder)
        return saved["position"]
        """,
        says="the model's",
    ),
    Answer(
        11,
        "the position stays where it was",
        """
        weights, state = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
        return position
        """,
        says="the position",
    ),
    Answer(
        11,
        "not given back: what is no tensor stays as it was",
        """
        weights, state = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": state, "position": position}
        dcp.load(saved, checkpoint_id=folder)
        return saved["position"]
        """,
        says="lr",
    ),
    Answer(
        9,
        "put together on all ranks",
        swap=("cpu_offload=True", "cpu_offload=False"),
        says="in save_checkpoint, rank 1 has",
    ),
    Answer(
        9,
        "names with the prefix of recomputed blocks",
        'full = {name: p.full_tensor().detach() for name, p in model.named_parameters()}\nsave0({"model": full, "config": config, "epoch": epoch}, path)',
        says="the wrapper's names",
    ),
    Answer(9, "epoch 0", swap=('"epoch": epoch', '"epoch": 0'), says="“epoch” is not what save_checkpoint was given"),
    Answer(
        9,
        "the first rank of each node",
        swap=("save0({", 'if os.environ["LOCAL_RANK"] == "0":\n    torch.save({'),
        edits=(("import math\nimport sys\n", "import math\nimport os\nimport sys\n"),),
        says="on 3 nodes with 2 ranks each, ranks [0, 2, 4] all write",
    ),
    Answer(
        9, "never written over", swap=("save0({", "path.exists() or save0({"), says="an earlier checkpoint at this path"
    ),
    Answer(
        10,
        "the optimizer's own numbers, without its groups",
        swap=('"optimizer": state', '"optimizer": optimizer.state_dict()["state"]'),
        says="there is no lr",
    ),
    Answer(
        11,
        "weights only, by the model's own loader",
        swap=(
            "set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)",
            "model.load_state_dict(weights)",
        ),
        says="the optimizer's",
    ),
    Answer(
        9,
        "put together tensor by tensor, and all of it kept on every rank",
        """
        full = {}
        for name, parameter in model.state_dict().items():
            full[name] = parameter.full_tensor().cpu() if isinstance(parameter, DTensor) else parameter
        save0({"model": full, "config": config, "epoch": epoch}, path)
        """,
        says="in save_checkpoint, rank 1 has",
    ),
    Answer(10, "nobody writes down the position", swap=(', "position": position}', "}")),
    Answer(
        11,
        "the optimizer begins anew",
        swap=(
            "set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)",
            "model.load_state_dict(weights)",
        ),
    ),
    Answer(
        11,
        "steps counted from 0 again",
        swap=(
            'return saved["position"]',
            "for held in optimizer.state.values():\n"
            '    held.get("step", torch.zeros(())).zero_()\n'
            'return saved["position"]',
        ),
        says=".step is not what was saved",
    ),
]


RIGHT = [
    Answer(
        10,
        "under other names, and both by themselves",
        """
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
        everything = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer), "position": dict(position)}
        dcp.save(everything, storage_writer=dcp.FileSystemWriter(folder))
        """,
    ),
    Answer(
        9,
        "by all ranks' full tensors, one kept at a time",
        'full = {}\nfor name, part in model.state_dict().items():\n    one = part.full_tensor()\n    if dist.get_rank() == 0:\n        full[name] = one.cpu()\n    del one\nsave0({"model": full, "config": config, "epoch": epoch}, path)',
    ),
    Answer(
        10,
        "torch's own keys of the optimizer",
        swap=(
            "weights, state = get_state_dict(model, optimizer)\n",
            "weights, state = model.state_dict(), optimizer.state_dict()\n",
        ),
        edits=(
            (
                "    weights, state = get_state_dict(model, optimizer)\n    saved = ",
                "    for p in model.parameters():  # a step that changes nothing makes the state\n"
                "        p.grad = torch.zeros_like(p)\n"
                "    optimizer.step()\n"
                "    optimizer.zero_grad()\n"
                "    weights, state = model.state_dict(), optimizer.state_dict()\n    saved = ",
            ),
            (
                "    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)\n",
                '    model.load_state_dict(weights)\n    optimizer.load_state_dict(saved["optimizer"])\n',
            ),
        ),
    ),
    Answer(11, "the position that it was given, filled in place", swap=('return saved["position"]', "return position")),
]
