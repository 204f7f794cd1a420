"""Files that ranks and their workers open, and bytes that they read, from a rank's events."""


def opened_by(events: list[dict]) -> dict[str, dict[int, int]]:
    """File -> which of the rank's processes opened it, and how often."""
    found: dict[str, dict[int, int]] = {}
    for event in events:
        if event["e"] == "opened":
            found.setdefault(event["name"], {})[event["reader"]] = event["times"]
    return found


def most_read(events: list[dict]) -> int:
    """The most bytes that one of the rank's watched calls can have read."""
    return max((event["bytes"] for event in events if event["e"] == "read"), default=0)
