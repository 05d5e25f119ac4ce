import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;

/** Publish one message, once: java Publish.java BROKER EXCHANGE ROUTING_KEY PAYLOAD KEY */
class Publish {
    public static void main(String[] args) throws Exception {
        String gateway = System.getenv().getOrDefault("GATEWAY_URL", "http://127.0.0.1:8080");
        String exchange = URLEncoder.encode(args[1], StandardCharsets.UTF_8).replace("+", "%20");
        String routingKey = URLEncoder.encode(args[2], StandardCharsets.UTF_8);
        // The body is the payload itself, so that no JSON library is needed.
        URI uri = URI.create(gateway + "/v1/brokers/" + args[0] + "/exchanges/" + exchange
            + ":publish?raw=true&routing_key=" + routingKey);
        HttpRequest.Builder request = HttpRequest.newBuilder(uri)
            .header("Content-Type", "text/plain")
            .header("Idempotency-Key", args[4]) // after any failure send the same again: nothing is published twice
            .POST(HttpRequest.BodyPublishers.ofString(args[3]));
        if (System.getenv("GATEWAY_API_KEY") != null) {
            request.header("Authorization", "Bearer " + System.getenv("GATEWAY_API_KEY"));
        }
        HttpResponse<String> answer = HttpClient.newHttpClient()
            .send(request.build(), HttpResponse.BodyHandlers.ofString());
        System.out.println(answer.body());
        System.exit(answer.statusCode() == 200 ? 0 : 1);
    }
}
