package judge;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * An independent AMQP client, driven over standard input and output: one JSON command a line, one JSON answer a line.
 * {@code {"do": "connect", "as": "c", "version": "0-10", ...}} names a connection; the other commands name it in
 * {@code "on"}. An answer is {@code {"result": ...}} or {@code {"error": "..."}}.
 */
public final class Judge {
    private final Map<String, Peer> peers = new HashMap<>();

    private Judge() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Judge judge = new Judge();
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ObjectNode answer = Values.JSON.createObjectNode();
            try {
                answer.set("result", judge.obey(Values.JSON.readTree(line)));
            } catch (Exception failure) {
                answer.put("error", describe(failure));
            }
            answers.println(answer);
        }
        System.exit(0);
    }

    private JsonNode obey(JsonNode command) throws Exception {
        String verb = command.get("do").asText();
        if (verb.equals("connect")) {
            peers.put(command.get("as").asText(), connect(command));
            return null;
        }
        if (verb.equals("scenario")) {
            return Scenario.run(command);
        }
        if (verb.equals("conventions")) {
            return Conventions.run(command);
        }
        if (verb.equals("recode")) {
            return Codec.recode(command.get("items"));
        }
        Peer peer = peers.get(command.get("on").asText());
        String queue = Values.text(command, "queue");
        switch (verb) {
            case "declare": peer.declareQueue(command); return null;
            case "bind": peer.bindQueue(queue, Values.text(command, "exchange"), Values.text(command, "routing_key")); return null;
            case "delete": peer.deleteQueue(queue); return null;
            case "publish":
                peer.publish(Values.text(command, "exchange", ""), Values.text(command, "routing_key", ""), command.get("messages"));
                return null;
            case "consume":
                return peer.consume(queue, command.path("count").asInt(1), command.path("milliseconds").asLong(5000),
                        Values.text(command, "settlement", "accept"));
            case "branches": return ((NativePeer) peer).branches(queue);
            case "close": peers.remove(command.get("on").asText()).close(); return null;
            default: throw new IllegalArgumentException("no such command: " + verb);
        }
    }

    private static Peer connect(JsonNode command) throws Exception {
        String version = command.get("version").asText();
        String host = command.get("host").asText();
        int port = command.get("port").asInt();
        String virtualHost = Values.text(command, "virtual_host", "/");
        String user = Values.text(command, "user", "guest");
        String password = Values.text(command, "password", "guest");
        if (version.equals("0-10")) {
            return new NativePeer(host, port, virtualHost, user, password);
        }
        return new JmsPeer(version, host, port, virtualHost, user, password);
    }

    static String describe(Throwable failure) {
        StringBuilder text = new StringBuilder();
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            text.append(text.length() == 0 ? "" : "; because of ").append(cause);
        }
        return text.toString();
    }
}
