<?php
// Publish one message, once: php publish.php BROKER EXCHANGE ROUTING_KEY PAYLOAD KEY
[, $broker, $exchange, $routingKey, $payload, $key] = $argv;
$gateway = getenv('GATEWAY_URL') ?: 'http://127.0.0.1:8080';

$headers = ['Content-Type: application/json', "Idempotency-Key: $key"]; // send the same again after any failure
if (getenv('GATEWAY_API_KEY')) {
    $headers[] = 'Authorization: Bearer ' . getenv('GATEWAY_API_KEY');
}
$answer = file_get_contents(
    "$gateway/v1/brokers/$broker/exchanges/" . rawurlencode($exchange) . ':publish',
    false,
    stream_context_create(['http' => [
        'method' => 'POST',
        'header' => $headers,
        'content' => json_encode(['routing_key' => $routingKey, 'payload' => $payload]),
        'ignore_errors' => true,
        'timeout' => 30,
    ]])
);
$outcome = $answer === false ? ['code' => 'unreachable', 'detail' => $gateway] : json_decode($answer, true);
$good = isset($outcome['routed']);
echo $good ? $outcome['status'] : "{$outcome['code']}: {$outcome['detail']}", "\n";
exit($good ? 0 : 1);
