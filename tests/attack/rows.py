"""The table of attacks: each row is a class of them, with the gateway it is for and what it may cost others."""

from __future__ import annotations

from typing import Final

from tests.attack import (
    amqp_frames,
    amqp_load,
    browsers,
    budgets,
    credentials,
    http_framing,
    http_load,
    json_bodies,
    logins,
    outbound,
    paths,
    poison,
    proxies,
    secrets,
    tokens,
)
from tests.attack.judge import Bounds
from tests.attack.lab import Row, SilentNames

HELD: Final = Bounds(memory_mib=256, wait_ms=100)
"""Of rows that have the embedded broker hold much, and whose neighbors wait for 100 ms at most."""
ROWS: Final = (
    Row("credentials and scopes", credentials.matrix),
    Row("ended keys", credentials.ended_keys),
    Row("bearer tokens", tokens.attack),
    Row("method overrides", credentials.overrides),
    Row("ack ids of others", credentials.ack_ids),
    Row("path tricks", paths.tricks),
    Row("odd names", paths.odd_names),
    Row("texts for databases", paths.texts),
    Row("framing", http_framing.framing),
    Row("heads", http_framing.heads),
    Row("upgrades and methods", http_framing.upgrades),
    Row("hosts, origins, sites", browsers.attack, on="keyless"),
    Row("hostile JSON", json_bodies.attack, bounds=Bounds(memory_mib=64)),
    Row("endpoint URLs", outbound.urls),
    Row("redirects", outbound.redirects),
    Row("hostile answers", outbound.answers),
    Row("silent names", outbound.silent_names, fresh=True, settings=outbound.SILENT_NAMES, kind=SilentNames),
    Row("planted secrets", secrets.leaks),
    Row("terminals and logs", secrets.terminals, quick=False),
    Row("hostile frames", amqp_frames.frames),
    Row("noise", amqp_frames.noise),
    Row("silent connections", amqp_frames.silent, bounds=Bounds(memory_mib=64)),
    Row("half frames", amqp_frames.half_frames, bounds=Bounds(memory_mib=256)),
    Row("unfinished messages", amqp_frames.unfinished, bounds=Bounds(memory_mib=320)),
    Row("channels to the cap", amqp_frames.channels, bounds=Bounds(memory_mib=64)),
    Row("slow readers", amqp_frames.slow_reader, bounds=Bounds(memory_mib=128)),
    Row("exchange.bound", amqp_load.exchange_bound, bounds=HELD),
    Row("headers exchange", amqp_load.headers_exchange, bounds=HELD),
    Row("LIKE selectors", amqp_load.like_selectors, bounds=HELD),
    Row("long selector", amqp_load.long_selector, bounds=HELD),
    Row("topic patterns", amqp_load.topic_patterns, bounds=HELD),
    Row("purges", amqp_load.purges, bounds=HELD),
    Row("dead-letter cascade", amqp_load.dead_letter_cascade, bounds=HELD),
    Row("poison messages", poison.attack),
    Row("budgets", budgets.attack, fresh=True, settings=budgets.SETTINGS),
    Row("trusted proxies", proxies.attack, fresh=True, settings=proxies.SETTINGS),
    Row("pipelining", http_load.pipelining, bounds=Bounds(memory_mib=5)),
    Row("slow callers", http_load.slow),
    Row("large bodies", http_load.large_bodies, bounds=Bounds(memory_mib=192)),
    Row("unread downloads", http_load.unread, bounds=Bounds(memory_mib=50)),
    Row("large pulls", http_load.big_pull, bounds=Bounds(memory_mib=512)),
    Row("login mechanisms", logins.mechanisms),
    Row("guessed passwords", logins.guesses),
)
"""In the order in which they run. Failed logins come last: they slow the next ones for a minute."""
