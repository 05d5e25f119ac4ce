<?php
// Publish once, pull and acknowledge, with a generated client: php main.php QUEUE
require __DIR__ . '/vendor/autoload.php';

use Gateway\Api\PublishApi;
use Gateway\Api\SubscriptionsApi;
use Gateway\Api\TopologyApi;
use Gateway\ApiException;
use Gateway\Configuration;
use Gateway\Model\AckRequest;
use Gateway\Model\PublishRequest;
use Gateway\Model\PullRequest;
use Gateway\Model\QueueSettings;
use Gateway\Model\SubscriptionSettings;

const BROKER = 'local-0-9-1';

$queue = $argv[1];
$configuration = (new Configuration())->setHost(getenv('GATEWAY_URL') ?: 'http://127.0.0.1:8080');
$publishes = new PublishApi(null, $configuration);
$subscriptions = new SubscriptionsApi(null, $configuration);

(new TopologyApi(null, $configuration))->putQueue(BROKER, $queue, new QueueSettings(['durable' => true]));
$subscriptions->putSubscription($queue, new SubscriptionSettings(['broker' => BROKER, 'queue' => $queue]));
$order = new PublishRequest(['routing_key' => $queue, 'payload' => ['order' => 7]]);
for ($turn = 0; $turn < 2; $turn++) { // after any failure send the same again: nothing is published twice
    $published = $publishes->publish(BROKER, 'amq.default', $order, idempotency_key: "$queue 7");
    echo $published->getStatus(), "\n";
}
$pulled = $subscriptions->pull($queue, new PullRequest(['max_messages' => 10, 'wait_seconds' => 5]));
$ackIds = [];
foreach ($pulled->getMessages() as $item) {
    echo $item->getMessage()->getPayload(), "\n";
    $ackIds[] = $item->getAckId();
}
foreach ($subscriptions->acknowledge($queue, new AckRequest(['ack_ids' => $ackIds]))->getResults() as $result) {
    echo $result->getStatus(), "\n";
}
try {
    $publishes->publish(BROKER, 'amq.default', new PublishRequest(['routing_key' => 'nowhere']));
} catch (ApiException $error) {
    echo $error->getCode(), "\n"; // no queue takes it: 422
}
