"""Other answers to TODOs 5 to 8 of 00_one_device."""

from grader.kit import Answer

WRONG = [
    Answer(5, "one state for each weight", swap=("8 * parameters", "4 * parameters"), says="state_bytes"),
    Answer(5, "16 bits", ["return 2 * parameters, 2 * parameters, 12 * parameters", None, None], says="state_bytes"),
    Answer(5, "no gradients", ["return 4 * parameters, 0, 8 * parameters", None, None], says="state_bytes"),
    Answer(
        5,
        "the head's weight for each token",
        swap=("+ vocabulary * dim)", "+ tokens * vocabulary * dim)"),
        says="kept_bytes",
    ),
    Answer(5, "logits are kept", swap=("+ vocabulary * dim)", "+ tokens * vocabulary)"), says="kept_bytes"),
    Answer(5, "no gradient of the head", swap=(" + vocabulary * dim)", ")"), says="kept_bytes"),
    Answer(5, "blocks alone", swap=("16 * layers + 2", "16 * layers"), says="kept_bytes"),
    Answer(5, "the end of each block", swap=("16 * layers + 2", "18 * layers"), says="kept_bytes"),
    Answer(
        5,
        "numbers, not bytes",
        swap=(
            "return 4 * (tokens * dim * (16 * layers + 2) + vocabulary * dim)",
            "return tokens * dim * (16 * layers + 2) + vocabulary * dim",
        ),
        says="kept_bytes",
    ),
    Answer(
        5,
        "fewer than none",
        swap=(
            "max(0, int((memory - sum(state_bytes(parameters))) // sequence_bytes))",
            "int((memory - sum(state_bytes(parameters))) // sequence_bytes)",
        ),
        says="most_sequences",
    ),
    Answer(
        5,
        "rounded up",
        swap=(
            "int((memory - sum(state_bytes(parameters))) // sequence_bytes)",
            "math.ceil((memory - sum(state_bytes(parameters))) / sequence_bytes)",
        ),
        says="most_sequences",
    ),
    Answer(
        5, "weights alone", swap=("sum(state_bytes(parameters))", "state_bytes(parameters)[0]"), says="most_sequences"
    ),
    Answer(5, "an empty device", swap=("memory - sum(state_bytes(parameters))", "memory"), says="most_sequences"),
    Answer(5, "at least one", swap=("max(0, ", "max(1, "), says="most_sequences"),
    Answer(
        5,
        "whole bytes of a sequence",
        swap=("// sequence_bytes", "// max(1, int(sequence_bytes))"),
        says="most_sequences",
    ),
    Answer(
        6,
        "one device too many where it fits exactly",
        swap=("math.ceil(16 * parameters / memory)", "int(16 * parameters // memory) + 1"),
        says="fewest_devices",
    ),
    Answer(6, "forward only", swap=("6 * parameters * tokens", "2 * parameters * tokens"), says="device_days"),
    Answer(6, "the full peak", swap=("(peak * mfu)", "peak"), says="device_days"),
    Answer(6, "slower is faster", swap=("/ (peak * mfu)", "* mfu / peak"), says="device_days"),
    Answer(6, "hours", swap=("86_400", "3_600"), says="device_days"),
    Answer(6, "weights alone", swap=("16 * parameters", "4 * parameters"), says="fewest_devices"),
    Answer(
        6,
        "rounded down",
        swap=("math.ceil(16 * parameters / memory)", "max(1, int(16 * parameters / memory))"),
        says="fewest_devices",
    ),
    Answer(
        6,
        "always one more than it takes",
        swap=("math.ceil(16 * parameters / memory)", "math.ceil(16 * parameters / memory) + 1"),
        says="fewest_devices",
    ),
    Answer(
        6,
        "rounded to the nearest",
        swap=("math.ceil(16 * parameters / memory)", "max(1, round(16 * parameters / memory))"),
        says="fewest_devices",
    ),
    Answer(
        6,
        "growth in a straight line",
        swap=("years * math.log(2) / math.log(last / first)", "years * first / (last - first)"),
        says="doubling_years",
    ),
    Answer(
        6,
        "e times as large",
        swap=("years * math.log(2) / math.log(last / first)", "years / math.log(last / first)"),
        says="doubling_years",
    ),
    Answer(
        6,
        "how often, not how long",
        swap=("years * math.log(2) / math.log(last / first)", "math.log2(last / first) / years"),
        says="doubling_years",
    ),
    Answer(7, "always strong", swap=('(n if scaling == "strong" else 1)', "n"), says="weak scaling"),
    Answer(7, "always weak", swap=(' / (n if scaling == "strong" else 1)', ""), says="strong scaling"),
    Answer(7, "the two confused", swap=('"strong"', '"weak"'), says="scaling"),
    Answer(7, "the speed-up", swap=("/ (n if", "* (1 if"), says="efficiency"),
    Answer(
        7,
        "the first that is listed",
        swap=("seconds[1] / took", "next(iter(seconds.values())) / took"),
        says="efficiency",
    ),
    Answer(
        7,
        "of the laws, the other one",
        swap=(("return 1 / (share + (1 - share) / devices)", "return share + devices * (1 - share)"),),
        says="amdahl",
    ),
    Answer(
        7,
        "the share that does get faster",
        swap=("share + (1 - share) / devices", "1 - share + share / devices"),
        says="amdahl",
    ),
    Answer(
        7,
        "the time, not the speed-up",
        swap=("return 1 / (share + (1 - share) / devices)", "return share + (1 - share) / devices"),
        says="amdahl",
    ),
    Answer(
        7,
        "the limit",
        swap=("return 1 / (share + (1 - share) / devices)", "return min(devices, 1 / share) if share else devices"),
        says="amdahl",
    ),
    Answer(
        7,
        "half the time at most does not get faster",
        swap=(
            "return 1 / (share + (1 - share) / devices)",
            "share = min(share, 0.5)\nreturn 1 / (share + (1 - share) / devices)",
        ),
        says="amdahl",
    ),
    Answer(
        7,
        "half the step at most does not grow",
        swap=("return share + devices * (1 - share)", "share = min(share, 0.5)\nreturn share + devices * (1 - share)"),
        says="gustafson",
    ),
    Answer(
        7,
        "half the time at most, from a speed-up",
        swap=(
            "return (devices / speed_up - 1) / (devices - 1)",
            "return min((devices / speed_up - 1) / (devices - 1), 0.5)",
        ),
        says="fixed_share",
    ),
    Answer(
        7,
        "no serial part",
        swap=("return share + devices * (1 - share)", "return devices * (1 - share)"),
        says="gustafson",
    ),
    Answer(
        7, "all of it scales", swap=("return share + devices * (1 - share)", "return devices - share"), says="gustafson"
    ),
    Answer(7, "one less the efficiency", [None, None, None, "return 1 - speed_up / devices"], says="fixed_share"),
    Answer(7, "by Gustafson", [None, None, None, "return (devices - speed_up) / (devices - 1)"], says="fixed_share"),
    Answer(
        7, "for many devices", swap=("(devices / speed_up - 1) / (devices - 1)", "1 / speed_up"), says="fixed_share"
    ),
    Answer(
        8,
        "a power of two of devices",
        swap=("max(1, for_time)", "1 << (max(1, for_time) - 1).bit_length()"),
        says="decide",
    ),
    Answer(8, "whole days of the deadline", swap=("days / deadline", "days / max(1, int(deadline))"), says="decide"),
    Answer(
        8,
        "time before memory",
        swap=(
            "if most_sequences(memory, parameters, sequence_bytes) >= 1:",
            "if for_time > 1 or most_sequences(memory, parameters, sequence_bytes) >= 1:",
        ),
        says="decide",
    ),
    Answer(
        8,
        "only the model must fit",
        swap=("most_sequences(memory, parameters, sequence_bytes) >= 1", "sum(state_bytes(parameters)) <= memory"),
        says="decide",
    ),
    Answer(8, "two sequences must fit", swap=(">= 1:", ">= 2:"), says="decide"),
    Answer(8, "a full device for the model", swap=("/ (memory - sequence_bytes)", "/ memory"), says="decide"),
    Answer(
        8,
        "the sequence is divided, too",
        swap=(
            "math.ceil(sum(state_bytes(parameters)) / (memory - sequence_bytes))",
            "math.ceil((sum(state_bytes(parameters)) + sequence_bytes) / memory)",
        ),
        says="decide",
    ),
    Answer(8, "no deadline for what is divided", swap=("max(for_time, to_hold)", "to_hold"), says="decide"),
    Answer(8, "both needs one after the other", swap=("max(for_time, to_hold)", "for_time * to_hold"), says="decide"),
    Answer(8, "rounded down", swap=("math.ceil(days / deadline)", "int(days / deadline)"), says="decide"),
    Answer(
        8, "just in time is too late", swap=("math.ceil(days / deadline)", "int(days / deadline) + 1"), says="decide"
    ),
    Answer(
        8,
        "always parallel",
        swap=('("one device" if for_time <= 1 else "data parallel")', '"data parallel"'),
        says="decide",
    ),
    Answer(
        8,
        "limited by the sequences",
        swap=("max(1, for_time)", "max(1, min(for_time, most_sequences(memory, parameters, sequence_bytes)))"),
        says="decide",
    ),
    Answer(8, "two at least", swap=("max(1, for_time)", "max(2, for_time)"), says="decide"),
    Answer(
        7,
        "an efficiency that is never above 1",
        swap=(
            'seconds[1] / took / (n if scaling == "strong" else 1)',
            'min(1.0, seconds[1] / took / (n if scaling == "strong" else 1))',
        ),
        says="the efficiency of 2 devices is wrong",
    ),
    Answer(
        7,
        "a fraction that is never negative",
        swap=("(devices / speed_up - 1) / (devices - 1)", "max(0.0, (devices / speed_up - 1) / (devices - 1))"),
        says="fixed_share",
    ),
    Answer(
        8,
        "one device more than just holds it",
        swap=(
            "math.ceil(sum(state_bytes(parameters)) / (memory - sequence_bytes))",
            "int(sum(state_bytes(parameters)) // (memory - sequence_bytes)) + 1",
        ),
    ),
    Answer(
        8,
        "an exact fit is divided",
        swap=("most_sequences(memory, parameters, sequence_bytes) >= 1", "16 * parameters + sequence_bytes < memory"),
        says="decide is wrong for 0.537 billion",
    ),
    Answer(
        6,
        "number of devices is a float",
        swap=("return math.ceil(16 * parameters / memory)", "return -(-16 * parameters // memory)"),
        says="returns a float",
    ),
]


RIGHT = [
    Answer(
        5,
        "in other words",
        [
            "return tuple(parameters * each for each in (4, 4, 8))",
            "numbers = layers * 16 * dim * tokens + 2 * tokens * dim + vocabulary * dim\nreturn numbers * 4",
            "left = memory - 16 * parameters\nreturn int(left / sequence_bytes + 1e-12) if left > 0 else 0",
        ],
    ),
    Answer(
        6,
        "in other words",
        [
            "seconds = 6 * parameters * tokens / peak / mfu\nreturn seconds / (24 * 60 * 60)",
            "return -int(-16 * parameters // memory)",
            "return years / math.log2(last / first)",
        ],
    ),
    Answer(
        7,
        "in other words",
        [
            "perfect = {n: seconds[1] / n if scaling == 'strong' else seconds[1] for n in seconds}\nreturn {n: perfect[n] / seconds[n] for n in seconds}",
            "return devices / (devices * share + 1 - share)",
            "return devices - (devices - 1) * share",
            "return (1 / speed_up - 1 / devices) / (1 - 1 / devices)",
        ],
    ),
    Answer(
        8,
        "by its own sums",
        "fits = 16 * parameters + sequence_bytes <= memory\nif fits and days <= deadline:\n    return 'one device', 1\nif fits:\n    return 'data parallel', math.ceil(days / deadline)\nreturn 'divide the model', max(math.ceil(days / deadline), math.ceil(16 * parameters / (memory - sequence_bytes)))",
    ),
]
