"""On ranks, for the checks of 05_pipeline_parallel: simulation."""

from grader.kit import raised

from .common import actions_of

# ---------------------------------------------------------------------------------------------------
# TODO 4: GPipe, and times


def simulate_on_rank(code, rank, world, trials, stuck, seconds):
    def simulated(schedule, seconds=seconds):
        return code.simulate(actions_of(code, schedule), dict(seconds))

    found = []
    for schedule, its_seconds in trials:
        try:
            times = simulated(schedule, its_seconds)
            found.append([[[float(t) for t in span] for span in mine] for mine in times])
        except ValueError as error:
            found.append(f"a ValueError: {error}")
        except TypeError:
            found.append("something that is not a list of (start, end) for each rank")
    return {"times": found, "stuck": [raised(lambda schedule=schedule: simulated(schedule)) for schedule in stuck]}
