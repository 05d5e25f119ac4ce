"""F26: one Idempotency-Key fifty times at once, over HTTP and on a real broker: one publish, and one answer for all."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing
from typing import Any, Final

from tests.chaos.figures import Figures
from tests.chaos.parts import Context
from tests.faults.checker import Outcome, digest
from tests.faults.harness import Run
from tests.faults.http import Answer, Http, NoAnswer, NotSent
from tests.faults.load import Shape

CALLERS: Final = 50
"""How many have the same key."""
KEYS: Final = {False: 4, True: 400}
"""How many keys, one after the other, in the quick and in the full form."""
KILLS: Final = 5
"""How often the gateway is killed in the midst of it, in the full form."""
PUBLISH: Final = "/v1/brokers/b/exchanges/amq.default:publish"
PROPERTIES: Final = {"content_type": "text/plain", "delivery_mode": 2}


async def _insist(port: int, key: str, body: dict[str, Any], answers: Counter[str]) -> Answer:
    """One caller: it repeats what is running, what was not sent and what has no answer."""
    with closing(Http(port)) as http:
        for _ in range(600):
            try:
                answer = await http.request("POST", PUBLISH, body, {"Idempotency-Key": key}, 30.0)
            except (NotSent, NoAnswer) as error:
                answers[type(error).__name__] += 1
                await asyncio.sleep(0.1)
                continue
            code = answer.json().get("code", "")
            answers[f"{answer.status} {code}".strip()] += 1
            if answer.status not in (409, 503, 504):
                return answer
            await asyncio.sleep(0.05)
    raise AssertionError(f"{key}: no answer at all: {dict(answers)}")


async def _play(context: Context) -> list[Figures]:
    keys = context.times or KEYS[context.full]
    run = Run(context.server("rabbitmq"), "0-9-1", "same key", Shape(messages=keys), seed=context.seed)
    answers: Counter[str] = Counter()
    differing = 0
    async with run:
        run.load.begin_consumers()
        kills = {round((number + 1) * keys / (KILLS + 1)) for number in range(KILLS)} if context.full else set()
        for number in range(keys):
            id = f"{context.seed}-{number}"
            properties = {"message_id": id, **PROPERTIES}
            body = {"routing_key": run.queue, "payload": id, "mandatory": True, "properties": properties}
            publish = run.history.attempt(id, digest(id.encode(), properties, {}))
            callers = [asyncio.create_task(_insist(run.gateway.port, id, body, answers)) for _ in range(CALLERS)]
            if number in kills:
                await asyncio.sleep(0.02)
                run.gateway.kill()
                await asyncio.to_thread(run.gateway.start)
                run.note(kills=1)
            found = await asyncio.gather(*callers)
            ids = {answer.json().get("id", "") for answer in found}
            run.must({answer.status for answer in found} == {200}, f"{id}: {Counter(each.status for each in found)}")
            differing += len(ids) != 1
            resent = any(answer.json().get("resent") for answer in found)
            run.history.answer(id, Outcome.ACKNOWLEDGED, ids.pop(), resent)
            publish.resent |= resent
        run.must(not differing, f"{differing} keys had answers of several messages")
        verdict = await run.finish()
    extra = {
        "callers": CALLERS,
        "requests": answers.total(),
        "kills": run.notes.get("kills", 0),
        "still_running_409": answers["409 idempotency_key_running"],
    }
    figures = Figures(
        f"{CALLERS} callers with one key, {run.broker}",
        verdict.attempted,
        verdict.acknowledged,
        len(verdict.lost),
        len(verdict.unexpected),
        verdict.duplicated,
        verdict.recovered,
        extra=extra,
        seconds=round(run.seconds, 1),
        problems=list(verdict.problems),
    )
    copies = Counter(reception.id for reception in run.history.receptions if not reception.redelivered)
    again = [id for id, number in copies.items() if number > 1 and not run.history.publishes[id].resent]
    figures.must(not again, f"{len(again)} keys were published more than once: {again[:3]}")
    return [figures]


def same_key(context: Context) -> list[Figures]:
    """Key after key; in the full form the gateway is killed now and then."""
    return asyncio.run(_play(context))
