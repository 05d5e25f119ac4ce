<?php
// Receive webhooks, and verify each: WEBHOOK_SECRET=whsec_… php -S 127.0.0.1:9000 webhook.php
function verify(string $secret, string $body): bool
{
    $id = $_SERVER['HTTP_WEBHOOK_ID'] ?? '';
    $stamp = $_SERVER['HTTP_WEBHOOK_TIMESTAMP'] ?? '';
    if (!ctype_digit($stamp) || abs(time() - (int) $stamp) > 300) {
        return false;
    }
    $wanted = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$stamp.$body", $secret, true));
    foreach (explode(' ', $_SERVER['HTTP_WEBHOOK_SIGNATURE'] ?? '') as $each) {
        if (hash_equals($wanted, $each)) {
            return true;
        }
    }
    return false;
}

$body = file_get_contents('php://input');
$secret = base64_decode(preg_replace('/^whsec_/', '', getenv('WEBHOOK_SECRET')));
if (verify($secret, $body)) {
    file_put_contents('php://stdout', json_decode($body, true)['message']['payload'] . "\n");
    http_response_code(204);
} else {
    http_response_code(401);
}
