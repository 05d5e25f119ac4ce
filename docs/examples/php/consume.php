<?php
// Pull messages, print them, and acknowledge them: php consume.php SUBSCRIPTION
function ask(string $subscription, string $verb, array $body): array
{
    $gateway = getenv('GATEWAY_URL') ?: 'http://127.0.0.1:8080';
    $headers = ['Content-Type: application/json'];
    if (getenv('GATEWAY_API_KEY')) {
        $headers[] = 'Authorization: Bearer ' . getenv('GATEWAY_API_KEY');
    }
    $answer = file_get_contents(
        "$gateway/v1/subscriptions/" . rawurlencode($subscription) . ":$verb",
        false,
        stream_context_create(['http' => [
            'method' => 'POST', 'header' => $headers, 'content' => json_encode($body), 'timeout' => 90,
        ]])
    );
    if ($answer === false) {
        exit(1);
    }
    return json_decode($answer, true);
}

$messages = ask($argv[1], 'pull', ['max_messages' => 10, 'wait_seconds' => 5])['messages'];
foreach ($messages as $each) {
    echo $each['message']['payload'], "\n";
}
if ($messages) {
    $settled = ask($argv[1], 'acknowledge', ['ack_ids' => array_column($messages, 'ack_id')]);
    foreach ($settled['results'] as $result) {
        echo $result['status'], "\n";
    }
}
