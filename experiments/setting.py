"""The setting of a comparison in words: what its arms share, and figures cannot be judged without.

Each part is a clause without its full stop, under the word for what it is about.
"""

from __future__ import annotations

from experiments.units import percent, ratio, seconds, size
from fedio.config import DEFAULT_CACHE_SHARE
from fedio.runs import HELD_EVALUATIONS, Row


def setting_clauses(comparison: Row) -> dict[str, str]:
    """Return the clauses about a comparison, in the order in which they are read."""
    setting = comparison["setting"]
    measured = ratio(comparison["io_to_compute"])
    clauses = {
        "Data": f"{setting['dataset']} on {setting['clients']} clients: {_partition(setting)}",
        "Rounds": f"{setting['rounds']} rounds{_ends(setting)}; {setting['cohort']} clients "
        f"count in each{_limits(setting)}",
        "Presence": _presence(setting["availability"]),
        "Work": f"Over-commitment {setting['over_commitment']:g}; local steps "
        f"{setting['local_steps']} x {setting['batch_size']}",
        "Cache": _cache(setting["cache"]),
        "Fleet": _fleet(setting["fleet"]),
        "I/O : compute": f"{measured} (cold origin and decode seconds over compute seconds)",
        "Models": _models(setting),
        "Sizes": _sizes(setting),
    }
    return {about: clause for about, clause in clauses.items() if clause}


def _ends(setting: Row) -> str:
    """Say what ends a run before its last round, if anything does."""
    horizon_s, wanted = setting["horizon_s"], setting["stop_accuracy"]
    ends = []
    if horizon_s is not None:
        ends.append(f"{seconds(horizon_s)} are over (what is evaluated later does not count)")
    if wanted is not None:
        ends.append(f"{HELD_EVALUATIONS} evaluations in a row have {percent(wanted)}")
    return f" at most, until {' or '.join(ends)}" if ends else ""


def _limits(setting: Row) -> str:
    """Say what ends a round before all are there, and what becomes of those that are late."""
    deadline = setting["deadline_s"]
    if isinstance(deadline, list):
        deadline = ", ".join(f"{seconds(limit)} from round {first}" for first, limit in deadline)
    elif deadline is not None:
        deadline = seconds(deadline)
    until = "" if deadline is None else f", until a deadline of {deadline}"
    return until + ("; who is late is told to stop" if setting["late"] == "cancel" else "")


def _presence(availability: Row) -> str:
    """Say when devices are there, unless that is always."""
    kind, period = availability["kind"], seconds(availability["period_s"])
    how = {
        "always": "",
        "trace": f"as in {availability['file']}",
        "periodic": f"{percent(availability['share'])} of every {period}",
        "random": f"{seconds(availability['stay_s'])} at a time on average, then away for "
        f"{seconds(availability['absence_s'])}",
    }[kind]
    leaving = {"abort": "aborts its work", "resume": "goes on when it is back"}
    left = leaving[availability["on_leave"]]
    return f"Devices are there {how}; who leaves in mid-round {left}" if how else ""


def _partition(setting: Row) -> str:
    partition = setting["partition"]
    kind = {
        "iid": "IID",
        "dirichlet": f"Dirichlet labels (alpha {partition['alpha']:g})",
        "pathological": f"{partition['classes_per_client']} classes a client",
    }[partition["kind"]]
    drawn, slow = partition.get("samples"), partition.get("slow_labels")
    each = f", median {drawn['median']:g} samples each" if drawn else ""
    return kind + each + (f"; labels follow slowness for {percent(slow)} of them" if slow else "")


def _cache(cache: Row) -> str:
    budget = cache.get("budget_bytes")
    share = cache.get("share", DEFAULT_CACHE_SHARE)
    what = f"{100 * share:g}% of each client's bytes" if budget is None else size(budget)
    daily = cache.get("daily_write_bytes")
    limit = "" if daily is None else f"; staging stops at {size(daily)} written in a day"
    return f"{what}, {cache['store']} store{limit}"


def _fleet(fleet: Row) -> str:
    mix = ", ".join(f"{share:g} {name}" for name, share in fleet["profiles"].items())
    storage = f"; storage of all as {fleet['storage']}" if fleet.get("storage") else ""
    if fleet.get("capacity"):
        measured = f"compute and network as in {fleet['capacity']}; storage and memory of"
        return f"{measured} {mix} (shares), spread by {fleet['spread']:g}{storage}"
    return f"{mix} (shares); speeds spread by {fleet['spread']:g}{storage}"


def _models(setting: Row) -> str:
    timing, learning = setting["timing_model"], setting["learning_model"]
    measured = " (the learning model, as the profiles measured it)" if timing == "own" else ""
    precision = "" if setting["precision"] == "float32" else f" in {setting['precision']}"
    return f"Timing model {timing}{measured}; learning model {learning}{precision}"


def _sizes(setting: Row) -> str:
    nominal = setting["nominal"]
    decode = f"decode {size(setting['decode_bytes_per_s'])}/s, unless a profile measured it"
    if nominal is None:
        return f"Sizes are those of the samples themselves, not inflated; {decode}"
    drawn = nominal["size_bytes"]
    return (
        f"Nominal sizes, drawn per sample: median {size(drawn['median'])}, sigma "
        f"{drawn['sigma']:g}, {size(drawn['min'])} to {size(drawn['max'])}; prepared "
        f"{size(nominal['prepared_bytes'])}; {decode}"
    )
