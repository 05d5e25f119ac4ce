import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** Pull messages, print them, and acknowledge them: java Consume.java SUBSCRIPTION */
class Consume {
    // Java has no JSON parser. Use one of your choice for the payloads; an ack id is plain ASCII.
    static final Pattern ACK_ID = Pattern.compile("\"ack_id\":\"([^\"]+)\"");

    static String ask(String subscription, String verb, String body) throws Exception {
        String gateway = System.getenv().getOrDefault("GATEWAY_URL", "http://127.0.0.1:8080");
        String name = URLEncoder.encode(subscription, StandardCharsets.UTF_8).replace("+", "%20");
        HttpRequest.Builder request = HttpRequest
            .newBuilder(URI.create(gateway + "/v1/subscriptions/" + name + ":" + verb))
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString(body));
        if (System.getenv("GATEWAY_API_KEY") != null) {
            request.header("Authorization", "Bearer " + System.getenv("GATEWAY_API_KEY"));
        }
        HttpResponse<String> answer = HttpClient.newHttpClient()
            .send(request.build(), HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new IllegalStateException(answer.body());
        }
        return answer.body();
    }

    public static void main(String[] args) throws Exception {
        String pulled = ask(args[0], "pull", "{\"max_messages\": 10, \"wait_seconds\": 20}");
        System.out.println(pulled);
        List<String> ids = ACK_ID.matcher(pulled).results().map(found -> '"' + found.group(1) + '"').toList();
        if (!ids.isEmpty()) {
            String list = ids.stream().collect(Collectors.joining(", ", "[", "]"));
            System.out.println(ask(args[0], "acknowledge", "{\"ack_ids\": " + list + "}"));
        }
    }
}
