"""Run folders for tests: written row by row where a number is checked, drawn where it is not."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fedio.config import Experiment
from fedio.costs import Phases
from fedio.output import dumps, write_text
from fedio.protocol import Meter
from fedio.runs import CLOCK_KEYS, Row

PHASES = tuple(field.name for field in fields(Phases))
COUNTS = tuple(field.name for field in fields(Meter) if field.type != "list[int]")


def experiment(arm: str = "uniform+lru", seed: int = 0, **changes: Any) -> Experiment:
    """Return an experiment of one arm, whose name may be anything."""
    values: dict[str, Any] = {
        "name": "made-up",
        "seed": seed,
        "arm": arm,
        "arms": {arm: {"kind": changes.pop("kind", "arm"), **changes.pop("chosen", {})}},
        "data": {"clients": changes.pop("clients", 4), "nominal": changes.pop("nominal", None)},
        "rounds": {"cohort": changes.pop("cohort", 2), "rounds": 5},
    }
    return Experiment.model_validate(values | changes)


def round_row(server_round: int, end_s: float, accuracy: float | None, **changes: Any) -> Row:
    """Return a row of `rounds.jsonl`."""
    row: Row = {
        "round": server_round, "start_s": 0.0, "end_s": end_s, "wanted": 2, "selected": [],
        "counted": [], "late": [], "left": [], "unused": [], "failed": [], "rejected": [],
        "not_selected": {},
        "accuracy": accuracy, "loss": None if accuracy is None else 1 - accuracy,
    }  # fmt: skip
    return row | changes


def client_row(server_round: int, client: int, outcome: str = "counted", **changes: Any) -> Row:
    """Return a row of `clients.jsonl`: zeros, or nulls of a participation that failed."""
    blank = None if outcome == "failed" else 0
    row: Row = {
        "round": server_round, "client": client, "device": "phone-mid", "outcome": outcome,
        "problem": None,
        "why": "explore", "details": {}, "predicted_s": None, "duration_s": blank,
        "arrival_s": blank, "utility": blank, "resident_samples": blank,
        "resident_bytes": blank, "samples": 10, "train_loss": blank,
    }  # fmt: skip
    return row | dict.fromkeys((*PHASES, *COUNTS), blank) | changes


def staged_row(client: int, window_s: float, **changes: Any) -> Row:
    """Return what a client staged, as it is in a row of `rounds.jsonl`."""
    row: Row = {
        "client": client, "window_s": window_s, "seconds": 0.5 * window_s, "needed_samples": 160,
        "held_samples": 20, "staged_samples": 30, "origin_samples": 30,
        "origin_bytes": 120_000_000, "decoded_samples": 0, "decoded_bytes": 0,
        "written_samples": 30, "written_bytes": 120_000_000, "evicted_samples": 30,
    }  # fmt: skip
    return row | changes


def write_run(
    path: Path,
    config: Experiment,
    rounds: list[Row],
    clients: list[Row] | None = None,
    **summary: Any,
) -> Path:
    """Write a run folder from its rows; `summary` changes keys of the summary."""
    path.mkdir(parents=True)
    everyone = config.data.clients
    env: Row = {
        "versions": {"fedio": "0.1.0", "torch": "2.14.1"}, "instruction_set": "AVX2",
        "commit": "0123abc", "seed": config.seed, "command": "fedio compare made-up",
    }  # fmt: skip
    total: Row = {
        "schema": 1, "name": config.name, "arm": config.arm, "seed": config.seed,
        "rounds": len(rounds) - 1, CLOCK_KEYS[config.engine.clock]: rounds[-1]["end_s"],
        "io_to_compute": 1.25,
        "holdout": {"accuracy": [None] * everyone, "samples": [0] * everyone},
    }  # fmt: skip
    write_text(path / "config.toml", config.to_toml())
    write_text(path / "env.json", dumps(env))
    write_text(path / "rounds.jsonl", "".join(dumps(row) + "\n" for row in rounds))
    write_text(path / "clients.jsonl", "".join(dumps(row) + "\n" for row in clients or []))
    write_text(path / "summary.json", dumps(total | summary))
    return path


def wall_row(
    server_round: int, client: int, outcome: str = "counted", error: float = 0.0, **changes: Any
) -> Row:
    """Return a row of an emulated run's `clients.jsonl`.

    A participation of 10 s; the virtual clock says more by `error` of each of its phases.
    """
    row = client_row(server_round, client, outcome)
    measured = {"download_s": 1.0, "origin_s": 2.0, "cache_s": 0.5, "decode_s": 1.0,
                "write_s": 0.5, "stall_s": 2.0, "compute_s": 6.0, "upload_s": 1.0,
                "duration_s": 10.0}  # fmt: skip
    if outcome == "failed":
        measured = dict.fromkeys(measured)  # type: ignore[arg-type]
    else:
        virtual = {f"virtual_{name}": value * (1 + error) for name, value in measured.items()}
        measured |= virtual | {"behind_s": 0.0, "flower_s": 3.0}
    return row | measured | changes


def write_emulated(path: Path, rounds: int = 12, clients: int = 8, **changes: Any) -> Path:
    """Write an emulated run in which everything happens: lateness, faults, a host too slow."""
    config = experiment(clients=clients, engine={"clock": "wall"}, **changes)
    rng = np.random.default_rng(5)
    now_s, rows, everyone = 0.0, [round_row(0, 0.0, 0.1)], []
    for server_round in range(1, rounds + 1):
        selected = sorted(map(int, rng.choice(clients, min(5, clients), replace=False)))
        cohort = [_emulated(server_round, client, now_s, rng) for client in selected]
        done = sorted(row["duration_s"] for row in cohort if row["duration_s"] is not None)
        length_s = done[-2]
        for row in cohort:
            if row["duration_s"] is not None and row["duration_s"] > length_s:
                row["outcome"] = "late"
        of = {name: [row["client"] for row in cohort if row["outcome"] == name]
              for name in ("counted", "late", "failed")}  # fmt: skip
        start_s, now_s = now_s, now_s + length_s
        rows.append(
            round_row(server_round, now_s, 0.1 + 0.05 * server_round, start_s=start_s,
                      selected=selected, **of)
        )  # fmt: skip
        everyone += cohort
    return write_run(path, config, rows, everyone)


def _emulated(server_round: int, client: int, start_s: float, rng: np.random.Generator) -> Row:
    """Return a participation on one of three classes of device, some of them struck."""
    device = ("phone-low", "phone-mid", "phone-high")[client % 3]
    struck = [name for name, rate in (("kill", 0.05), ("stop", 0.1)) if rng.random() < rate]
    if "kill" in struck:
        return wall_row(server_round, client, "failed", device=device, faults=struck)
    row = wall_row(server_round, client, device=device, faults=struck)
    slowness = (3.0, 2.0, 1.0)[client % 3]
    for key in (*PHASES, "duration_s"):
        row[key] *= slowness * float(rng.lognormal(0, 0.05)) * (3 if struck else 1)
        row[f"virtual_{key}"] = row[key] * float(rng.normal(1.02, 0.05))
    row["duration_s"] = sum(row[f"{one}_s"] for one in ("download", "stall", "compute", "upload"))
    row["behind_s"] = 0.2 * row["duration_s"] if rng.random() < 0.1 else 0.0
    return row | {"arrival_s": start_s + row["duration_s"]}


def telemetry_rows() -> list[Row]:
    """Return a short run's telemetry: a SuperLink, and a device that was started again."""
    return [
        {"what": "begin", "wall_s": 0.0, "began_s": 1e9, "date": "2001-09-09T01:46:40+00:00"},
        {"what": "started", "wall_s": 1.0, "kind": "device", "client": 0, "pid": 7, "took_s": 0.4},
        process_row(2.0, 5, "superlink", user_s=1.0, pss_bytes=150_000_000),
        process_row(2.0, 7, "device", user_s=1.0, pss_bytes=10_000_000, read_bytes=1_000_000),
        {"what": "host", "wall_s": 2.0, "telemetry_share": 0.01},
        process_row(3.0, 7, "device", user_s=3.0, read_bytes=2_000_000, written_bytes=4_000),
        {"what": "ended", "wall_s": 3.5, "kind": "device", "client": 0, "pid": 7, "code": -9},
        {"what": "started", "wall_s": 4.0, "kind": "device", "client": 0, "pid": 9, "took_s": 0.6},
        process_row(5.0, 5, "superlink", user_s=1.25, system_s=0.25, pss_bytes=100_000_000),
        process_row(5.0, 9, "device", user_s=4.0, pss_bytes=400_000_000, read_bytes=1_000_000),
        {"what": "host", "wall_s": 5.0, "telemetry_share": 0.004},
    ]


def process_row(wall_s: float, pid: int, kind: str, **changes: Any) -> Row:
    """Return what a process used, as telemetry writes it down."""
    row: Row = {
        "what": "process", "wall_s": wall_s, "pid": pid, "kind": kind,
        "client": 0 if kind == "device" else None, "born_s": 0.5 + pid, "user_s": 0.0,
        "system_s": 0.0, "children_s": 0.0, "threads": 1, "rss_bytes": 1_000_000, "read_bytes": 0,
        "written_bytes": 0, "read_calls": 0, "write_calls": 0,
    }  # fmt: skip
    return row | changes


def draw_run(path: Path, arm: str, seed: int, rounds: int = 40, **size: int) -> Path:
    """Write a run that looks like a real one: accuracy grows, caches warm, phones differ.

    The name of the arm shapes it: `oort` and `io_aware` favour fast clients, `static` hits more,
    `serial` does not read ahead, `prepared` caches prepared samples, `staged` stages.
    """
    chosen = {"prefetch": "serial" not in arm, "staging": "staged" in arm}
    chosen["form"] = "prepared" if "prepared" in arm else "encoded"
    shape = {"clients": size.get("clients", 100), "cohort": size.get("cohort", 10)}
    config = experiment(arm, seed, chosen=chosen, **shape)
    rng = np.random.default_rng([seed, *arm.encode()])
    everyone, cohort = config.data.clients, config.rounds.cohort
    speeds = np.random.default_rng(seed).lognormal(0, 0.7, everyone)
    weights = np.ones(everyone) if arm.startswith("uniform") else speeds**-1.2
    weights /= weights.sum()
    times = np.zeros(everyone, dtype=int)
    now, rows, clients = 0.0, [round_row(0, 0.0, 0.1)], []
    for server_round in range(1, rounds + 1):
        selected = rng.choice(everyone, cohort + 1, replace=False, p=weights)
        arrived = [
            _participation(
                server_round, int(client), float(speeds[client]), times[client], arm, rng
            )
            for client in selected
        ]
        times[selected] += 1
        arrived.sort(key=lambda row: row["duration_s"])
        arrived[-1]["outcome"] = "late"
        start, now = now, now + arrived[-2]["duration_s"]
        for row in arrived:
            row["arrival_s"] = start + row["duration_s"]
        rows.append(
            round_row(
                server_round,
                now,
                float(0.85 - 0.75 * np.exp(-server_round / 12) + rng.normal(0, 0.008)),
                start_s=start,
                wanted=cohort,
                selected=sorted(int(client) for client in selected),
                counted=sorted(row["client"] for row in arrived[:-1]),
                late=[arrived[-1]["client"]],
                not_selected={"not drawn": everyone - cohort - 2, "busy": 1},
                **({"staged": [staged_row(int(selected[0]), 60.0)]} if chosen["staging"] else {}),
            )
        )
        clients += sorted(arrived, key=lambda row: row["client"])
    holdout = {"accuracy": list(rng.beta(8, 2, everyone)), "samples": [10] * everyone}
    return write_run(path, config, rows, clients, holdout=holdout)


def _participation(
    server_round: int, client: int, speed: float, times: int, arm: str, rng: np.random.Generator
) -> Row:
    """Return a drawn participation of 200 accesses to samples of 4 MB."""
    share = min(0.05 + 0.12 * times, 0.45) if "static" in arm else min(0.02 + 0.01 * times, 0.1)
    hits = int(rng.binomial(200, share))
    misses, samples_bytes = 200 - hits, 4_000_000
    compute_s, steps = 20 * speed, 10
    busy = {"origin_s": 0.09 * misses, "cache_s": 0.008 * hits, "write_s": 0.02 * misses}
    busy["decode_s"] = 0.04 * misses if "prepared" in arm else 8.0
    busy_s = sum(busy.values())
    # The first batch is waited for, and then whatever takes longer than training.
    ahead_s = busy_s / steps + max(0.0, (busy_s - compute_s) * (1 - 1 / steps))
    took = {
        "download_s": 0.8 * speed, "stall_s": busy_s if "serial" in arm else ahead_s,
        "compute_s": compute_s, "upload_s": 2 * speed,
    }  # fmt: skip
    duration_s = sum(took.values())
    return client_row(
        server_round, client, why="explore" if times == 0 else "exploit",
        details={"score": float(1 / speed), "utility": float(rng.lognormal(3, 0.5))},
        predicted_s=duration_s * float(rng.normal(1, 0.05)), duration_s=duration_s,
        requests=200, hits=hits, misses=misses, steps=10, trained_samples=200, unique_samples=160,
        hit_bytes=hits * samples_bytes, origin_bytes=misses * samples_bytes,
        written_samples=misses, written_bytes=misses * samples_bytes, train_loss=0.5,
        staged=hits // 2 if "staged" in arm else 0, effective_samples=150.0, **took, **busy,
    )  # fmt: skip


def write_map(path: Path, name: str = "atlas", seeds: int = 2) -> Path:
    """Write the runs of a map of two arms: one axis moves I/O : compute, the other does not.

    `fast` takes two thirds of what `slow`, the reference, does, in the largest cell half, a little
    more with each seed; with small caches it reaches nothing.
    """
    section = {"axes": {
        "size": {"title": "Size of samples", "question": "Does size matter?",
                 "regime": "Large samples part the arms.", "base": "2 MB",
                 "cells": {"2 MB": {}, "8 MB": {"cache.share": 0.3}}},
        "cache": {"title": "Share of the cache", "question": "Does room matter?",
                  "regime": "Little room levels them.", "base": "20%",
                  "cells": {"1%": {"cache.share": 0.01}, "20%": {}}},
    }}  # fmt: skip
    arms = {"slow": {"selector": "oort"}, "fast": {"selector": "io_aware", "policy": "static"}}
    compare = {"reference": "slow", "target_accuracy": 0.5}
    for cell, share, ratio in (
        ("base", 0.2, 1.0),
        ("size/8 MB", 0.3, 4.0),
        ("cache/1%", 0.01, 1.0),
    ):
        for arm, taken in (("slow", 1.0), ("fast", 0.5 if cell == "size/8 MB" else 2 / 3)):
            for seed in range(seeds):
                config = experiment(
                    arm, seed, name=name, arms=arms, compare=compare, cell=cell, map=section,
                    cache={"share": share}, description="Where does it matter?",
                )  # fmt: skip
                reaches = 0.4 if (cell, arm) == ("cache/1%", "fast") else 0.6
                round_s = 100.0 * ratio * taken * (1 + 0.1 * seed * (arm == "fast"))
                rows = [round_row(r, r * round_s, reaches if r else 0.1) for r in range(6)]
                clients = [client_row(1, 0, requests=10, hits=4, misses=6, duration_s=round_s)]
                folder = path / cell / arm / f"seed-{seed}"
                write_run(folder, config, rows, clients, io_to_compute=ratio, wall_s=2.0)
    return path
