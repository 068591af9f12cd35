"""Flower apps that measure Flower's own runtime and the inline grid in turns, in one process.

The ServerApp runs on Flower's simulation runtime and asks Ray's clients through Flower's grid; in
turns it asks clients of the same ClientApp through an inline grid with as many worker processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from experiments.bench.measure import in_turns
from experiments.engines.inline import InlineGrid, node_ids
from experiments.engines.pools import Workers
from fedio.arrays import pack
from fedio.protocol import ARRAYS, CONFIG, LOCAL_STEPS, METRICS, NUM_EXAMPLES, SERVER_ROUND

POLL_S = 0.002
ROSTER_TIMEOUT_S = 120.0

noop_client = ClientApp()


@noop_client.train()
def echo(message: Message, context: Context) -> Message:
    """Send the arrays back at once."""
    del context
    content = {ARRAYS: message.content[ARRAYS], METRICS: MetricRecord({NUM_EXAMPLES: 1})}
    return Message(RecordDict(content), reply_to=message)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Measure rounds of training on both grids and write the seconds as JSON.

    The run config's `plan` is a JSON object: clients, cohort, workers, app, experiment (for the
    inline clients), arrays (a .npz with the model), local_steps, result (the file to write).
    """
    plan: dict[str, Any] = json.loads(str(context.run_config["plan"]))
    with np.load(plan["arrays"], allow_pickle=False) as stored:
        arrays = ArrayRecord({name: pack(stored[name]) for name in stored.files})
    rounds, steps = count(1), plan["local_steps"]

    def content() -> RecordDict:
        config = ConfigRecord({SERVER_ROUND: next(rounds), LOCAL_STEPS: steps})
        return RecordDict({ARRAYS: arrays, CONFIG: config})

    nodes = _wait_for_nodes(grid, plan["clients"])
    inline_nodes = node_ids(plan["clients"])
    run_config = {"experiment": plan["experiment"], "overrides": ""}
    pool = Workers(plan["workers"], inline_nodes, run_config, app=plan["app"])
    try:
        inline = InlineGrid(list(inline_nodes), pool)
        ours, flower = in_turns(
            lambda: _round(inline, list(inline_nodes)[: plan["cohort"]], content()),
            lambda: _round(grid, nodes[: plan["cohort"]], content()),
        )
    finally:
        pool.close()
    Path(plan["result"]).write_text(json.dumps({"ours": ours, "flower": flower}))


def _wait_for_nodes(grid: Grid, clients: int) -> list[int]:
    deadline = time.monotonic() + ROSTER_TIMEOUT_S
    while len(nodes := sorted(grid.get_node_ids())) < clients:
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {len(nodes)} of {clients} nodes connected")
        time.sleep(POLL_S)
    return nodes


def _round(grid: Grid, nodes: Sequence[int], content: RecordDict) -> None:
    """Send the content to all nodes and wait for all replies, without a pause worth speaking of."""
    pending = set(grid.push_messages([Message(content, node, "train") for node in nodes]))
    while pending:
        replies = list(grid.pull_messages(pending))
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
        pending -= {reply.metadata.reply_to_message_id for reply in replies}
        if not replies:
            time.sleep(POLL_S)
