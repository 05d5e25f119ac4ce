import com.sun.net.httpserver.Headers;
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Base64;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Receive webhooks, and verify each: WEBHOOK_SECRET=whsec_… PORT=9000 java Webhook.java */
class Webhook {
    static boolean verify(byte[] secret, Headers headers, byte[] body) throws Exception {
        String id = headers.getFirst("webhook-id");
        String stamp = headers.getFirst("webhook-timestamp");
        String given = headers.getFirst("webhook-signature");
        if (id == null || given == null || stamp == null || !stamp.matches("[0-9]{1,12}")
            || Math.abs(System.currentTimeMillis() / 1000 - Long.parseLong(stamp)) > 300) {
            return false;
        }
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(secret, "HmacSHA256"));
        mac.update((id + "." + stamp + ".").getBytes(StandardCharsets.UTF_8));
        String wanted = "v1," + Base64.getEncoder().encodeToString(mac.doFinal(body));
        for (String each : given.split(" ")) {
            if (MessageDigest.isEqual(each.getBytes(StandardCharsets.UTF_8), wanted.getBytes(StandardCharsets.UTF_8))) {
                return true;
            }
        }
        return false;
    }

    public static void main(String[] args) throws Exception {
        byte[] secret = Base64.getDecoder().decode(System.getenv("WEBHOOK_SECRET").replaceFirst("^whsec_", ""));
        int port = Integer.parseInt(System.getenv().getOrDefault("PORT", "9000"));
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
        server.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            boolean good;
            try {
                good = verify(secret, exchange.getRequestHeaders(), body);
            } catch (Exception error) {
                good = false;
            }
            if (good) {
                System.out.println(new String(body, StandardCharsets.UTF_8));
            }
            exchange.sendResponseHeaders(good ? 204 : 401, -1);
            exchange.close();
        });
        server.start();
    }
}
