"""Publish once, pull and acknowledge, with a generated client: main.py QUEUE"""

import os
import sys

from gateway_client import (
    AckRequest,
    ApiClient,
    ApiException,
    Configuration,
    PublishApi,
    PublishRequest,
    PublishRequestRoutingKey,
    PullRequest,
    QueueSettings,
    SubscriptionsApi,
    SubscriptionSettings,
    TopologyApi,
)

BROKER, QUEUE = "local-0-9-1", sys.argv[1]
client = ApiClient(Configuration(os.environ.get("GATEWAY_URL", "http://127.0.0.1:8080")))
publishes, subscriptions = PublishApi(client), SubscriptionsApi(client)

TopologyApi(client).put_queue(BROKER, QUEUE, QueueSettings(durable=True))
subscriptions.put_subscription(QUEUE, SubscriptionSettings(broker=BROKER, queue=QUEUE))
order = PublishRequest(routing_key=PublishRequestRoutingKey(QUEUE), payload={"order": 7})
for _ in range(2):  # after any failure send the same again: nothing is published twice
    published = publishes.publish(BROKER, "amq.default", order, idempotency_key=f"{QUEUE} 7")
    print(published.status)
pulled = subscriptions.pull(QUEUE, PullRequest(max_messages=10, wait_seconds=5))
for item in pulled.messages:
    print(item.message.payload)
answer = subscriptions.acknowledge(QUEUE, AckRequest(ack_ids=[item.ack_id for item in pulled.messages]))
print([result.status for result in answer.results])
try:
    publishes.publish(BROKER, "amq.default", PublishRequest(routing_key=PublishRequestRoutingKey("nowhere")))
except ApiException as error:
    print(error.status)  # no queue takes it: 422
