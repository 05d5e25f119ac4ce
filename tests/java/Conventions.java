package judge;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Enumeration;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Destination;
import javax.jms.MapMessage;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.ObjectMessage;
import javax.jms.Session;
import javax.jms.StreamMessage;
import javax.jms.TextMessage;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.qpid.client.AMQDestination;
import org.apache.qpid.client.AMQSession;
import org.apache.qpid.jms.ListMessage;

/**
 * What JMS applications rely on between two brokers or two versions: the sender and the receiver are connections of
 * their own, each with a place: {@code {"version", "host", "port", "virtual_host", "queue"}}. A queue is bound to
 * {@code amq.direct} by its name.
 */
final class Conventions {
    private static final long SOON = 8000;
    private static final long NEVER = 150;
    static final int TIME_TO_LIVE = 600_000;

    private Conventions() {
    }

    static JsonNode run(JsonNode command) throws Exception {
        switch (command.get("what").asText()) {
            case "declare": return declare(command.get("at"));
            case "send": return send(command.get("at"), command.path("reply").asText("answers"));
            case "receive": return receive(command.get("at"), command.get("count").asInt());
            case "request": return request(command);
            case "acknowledge": return acknowledge(command.get("at"), command.get("from"), command.get("mode").asText(),
                    command.path("count").asInt(20), command.path("taken").asInt(command.path("count").asInt(20)));
            default: throw new IllegalArgumentException("no such command");
        }
    }

    private static Connection connect(JsonNode place) throws Exception {
        Connection connection = JmsPeer.connect(place.get("version").asText(), place.get("host").asText(), place.get("port").asInt(),
                Values.text(place, "virtual_host", "/"), "guest", "guest", true);
        connection.start();
        return connection;
    }

    private static Destination queue(Session session, String name) throws Exception {
        return session.createQueue("BURL:direct://amq.direct/" + name + "/" + name + "?durable='false'");
    }

    /** A consumer declares and binds its queue. */
    private static JsonNode declare(JsonNode place) throws Exception {
        Connection connection = connect(place);
        try {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            session.createConsumer(queue(session, place.get("queue").asText())).close();
        } finally {
            connection.close();
        }
        return null;
    }

    // --------------------------------------------------------------------------------------------- every kind

    private static JsonNode send(JsonNode place, String answers) throws Exception {
        ArrayNode sent = Values.JSON.createArrayNode();
        Connection connection = connect(place);
        try {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageProducer producer = session.createProducer(queue(session, place.get("queue").asText()));
            Destination reply = queue(session, answers);
            for (Message message : kinds(session)) {
                properties(message);
                message.setJMSReplyTo(reply);
                producer.send(message, DeliveryMode.NON_PERSISTENT, 7, TIME_TO_LIVE);
                sent.add(describe(message));
            }
            Message plain = session.createTextMessage("plain");
            producer.send(plain, DeliveryMode.PERSISTENT, 4, 0);
            sent.add(describe(plain));
        } finally {
            connection.close();
        }
        return sent;
    }

    private static List<Message> kinds(Session session) throws Exception {
        List<Message> messages = new ArrayList<>();
        messages.add(session.createTextMessage("text \u00e9\u4e16"));
        messages.add(session.createTextMessage());
        BytesMessage bytes = session.createBytesMessage();
        bytes.writeBytes(new byte[] {0, 1, (byte) 0xff});
        bytes.writeUTF("\u00fc");
        bytes.writeLong(-5);
        messages.add(bytes);
        MapMessage map = session.createMapMessage();
        map.setBoolean("boolean", true);
        map.setByte("byte", (byte) -3);
        map.setShort("short", (short) -300);
        map.setChar("char", 'c');
        map.setInt("int", -70_000);
        map.setLong("long", 1L << 40);
        map.setFloat("float", 1.5f);
        map.setDouble("double", 0.1);
        map.setString("string", "\u00fc");
        map.setBytes("bytes", new byte[] {0, (byte) 0xff});
        messages.add(map);
        messages.add(session.createObjectMessage(new ArrayList<>(Arrays.asList("one", 2, 3L, 4.5))));
        StreamMessage stream = session.createStreamMessage();
        stream.writeBoolean(true);
        stream.writeByte((byte) -3);
        stream.writeShort((short) -300);
        stream.writeChar('\u00e9');
        stream.writeInt(-70_000);
        stream.writeLong(1L << 40);
        stream.writeFloat(1.5f);
        stream.writeDouble(0.1);
        stream.writeString("\u00fc");
        stream.writeBytes(new byte[] {0, (byte) 0xff});
        messages.add(stream);
        ListMessage list = ((AMQSession<?, ?>) session).createListMessage();
        list.add("one");
        list.add(2);
        list.add(3L);
        messages.add(list);
        messages.add(session.createMessage());
        return messages;
    }

    private static void properties(Message message) throws Exception {
        message.setJMSCorrelationID("correlation \u00fc");
        message.setJMSType("order");
        message.setBooleanProperty("boolean", true);
        message.setByteProperty("byte", (byte) -3);
        message.setShortProperty("short", (short) -300);
        message.setIntProperty("int", -70_000);
        message.setLongProperty("long", 1L << 40);
        message.setFloatProperty("float", 1.5f);
        message.setDoubleProperty("double", 0.1);
        message.setStringProperty("string", "\u00fc");
        message.setStringProperty("JMSXGroupID", "group");
        message.setIntProperty("JMSXGroupSeq", 3);
    }

    // ----------------------------------------------------------------------------------------------- as read

    private static JsonNode receive(JsonNode place, int count) throws Exception {
        ArrayNode received = Values.JSON.createArrayNode();
        Connection connection = connect(place);
        try {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(queue(session, place.get("queue").asText()));
            while (received.size() < count) {
                Message message = consumer.receive(SOON);
                if (message == null) {
                    break;
                }
                received.add(describe(message));
            }
        } finally {
            connection.close();
        }
        return received;
    }

    private static ObjectNode describe(Message message) throws Exception {
        ObjectNode result = Values.JSON.createObjectNode();
        result.put("kind", kind(message));
        result.put("body", body(message));
        result.put("message_id", message.getJMSMessageID());
        result.put("correlation_id", message.getJMSCorrelationID());
        result.put("type", message.getJMSType());
        result.put("priority", message.getJMSPriority());
        result.put("delivery_mode", message.getJMSDeliveryMode());
        result.put("expiration", message.getJMSExpiration());
        result.put("timestamp", message.getJMSTimestamp());
        result.put("redelivered", message.getJMSRedelivered());
        AMQDestination reply = (AMQDestination) message.getJMSReplyTo();
        if (reply != null) {
            result.put("reply_to", reply.getExchangeName() + "/" + reply.getRoutingKey());
        }
        Map<String, String> properties = new TreeMap<>();
        Enumeration<?> names = message.getPropertyNames();
        while (names.hasMoreElements()) {
            String name = (String) names.nextElement();
            properties.put(name, typed(message.getObjectProperty(name)));
        }
        result.set("properties", Values.JSON.valueToTree(properties));
        return result;
    }

    private static String kind(Message message) {
        if (message instanceof ListMessage) {
            return "list";
        }
        for (Class<?> kind : new Class<?>[] {TextMessage.class, BytesMessage.class, MapMessage.class, ObjectMessage.class, StreamMessage.class}) {
            if (kind.isInstance(message)) {
                return kind.getSimpleName().replace("Message", "").toLowerCase();
            }
        }
        return "message";
    }

    private static String typed(Object value) {
        String text = value instanceof byte[] ? Values.base64((byte[]) value) : String.valueOf(value);
        return (value == null ? "null" : value.getClass().getSimpleName()) + " " + text;
    }

    private static String body(Message message) throws Exception {
        switch (kind(message)) {
            case "text": return ((TextMessage) message).getText();
            case "object": return String.valueOf(((ObjectMessage) message).getObject());
            case "list": return String.valueOf(((ListMessage) message).asList());
            case "bytes": {
                BytesMessage bytes = (BytesMessage) message;
                bytes.reset();
                byte[] octets = new byte[(int) bytes.getBodyLength()];
                bytes.readBytes(octets);
                bytes.reset();
                return Values.base64(octets);
            }
            case "map": {
                Map<String, String> values = new TreeMap<>();
                for (Object name : Collections.list(((MapMessage) message).getMapNames())) {
                    values.put((String) name, typed(((MapMessage) message).getObject((String) name)));
                }
                return values.toString();
            }
            case "stream": {
                StreamMessage stream = (StreamMessage) message;
                stream.reset();
                List<String> values = new ArrayList<>();
                for (int index = 0; index < 10; index++) {
                    values.add(typed(stream.readObject()));
                }
                stream.reset();
                return values.toString();
            }
            default: return null;
        }
    }

    // ---------------------------------------------------------------------------------------------- request

    /** A question from one place, the answer from another; what each of the two saw. */
    private static JsonNode request(JsonNode command) throws Exception {
        JsonNode asking = command.get("at");
        JsonNode answering = command.get("to");
        ObjectNode result = Values.JSON.createObjectNode();
        Connection server = connect(answering);
        Connection client = connect(asking);
        try {
            Session serving = server.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageConsumer questions = serving.createConsumer(queue(serving, answering.get("queue").asText()));
            Session session = client.createSession(false, Session.AUTO_ACKNOWLEDGE);
            String named = Values.text(command, "reply");
            Destination answers = named == null ? session.createTemporaryQueue()
                    : named.contains(":") ? session.createQueue(named) : queue(session, named);
            MessageConsumer consumer = session.createConsumer(answers);
            TextMessage question = session.createTextMessage("question");
            question.setJMSReplyTo(answers);
            session.createProducer(queue(session, asking.get("queue").asText())).send(question);
            result.put("asked", question.getJMSMessageID());
            Message got = questions.receive(SOON);
            if (got == null) {
                result.put("failed", "the question did not come");
                return result;
            }
            result.put("seen", got.getJMSMessageID());
            result.put("reply_to", String.valueOf(got.getJMSReplyTo()));
            TextMessage answer = serving.createTextMessage("answer");
            answer.setJMSCorrelationID(got.getJMSMessageID());
            serving.createProducer(null).send(got.getJMSReplyTo(), answer);
            Message reply = consumer.receive(SOON);
            if (reply == null) {
                result.put("failed", "the answer did not come");
                return result;
            }
            result.put("answer", body(reply));
            result.put("correlation_id", reply.getJMSCorrelationID());
        } finally {
            client.close();
            server.close();
        }
        return result;
    }

    // ------------------------------------------------------------------------------------------ acknowledge

    private static int mode(String name) {
        switch (name) {
            case "auto": return Session.AUTO_ACKNOWLEDGE;
            case "client": return Session.CLIENT_ACKNOWLEDGE;
            case "dups-ok": return Session.DUPS_OK_ACKNOWLEDGE;
            case "no-ack": return AMQSession.NO_ACKNOWLEDGE;
            case "transacted": return Session.SESSION_TRANSACTED;
            default: throw new IllegalArgumentException(name);
        }
    }

    /**
     * Twenty messages to a listener in this mode, ten more to a receiver; then the queue has to be empty. Returns null,
     * or what went wrong.
     */
    private static JsonNode acknowledge(JsonNode place, JsonNode from, String name, int count, int taken) throws Exception {
        List<String> wrong = Collections.synchronizedList(new ArrayList<>());
        boolean transacted = name.equals("transacted");
        Connection connection = connect(place);
        connection.setExceptionListener(failure -> wrong.add("connection: " + Judge.describe(failure)));
        try {
            Session session = connection.createSession(transacted, mode(name));
            MessageConsumer consumer = session.createConsumer(queue(session, place.get("queue").asText()));
            CountDownLatch all = new CountDownLatch(taken);
            consumer.setMessageListener(message -> {
                try {
                    if (transacted) {
                        session.commit();
                    } else if (name.equals("client")) {
                        message.acknowledge();
                    }
                } catch (Exception failure) {
                    wrong.add("listener: " + Judge.describe(failure));
                }
                all.countDown();
            });
            publish(from, count);
            if (!all.await(SOON, TimeUnit.MILLISECONDS)) {
                wrong.add(all.getCount() + " did not come");
            }
            session.close();
            Session second = connection.createSession(transacted, mode(name));
            MessageConsumer receiver = second.createConsumer(queue(second, place.get("queue").asText()));
            publish(from, 10);
            for (int index = 0; index < 10; index++) {
                Message message = receiver.receive(SOON);
                if (message == null || !((TextMessage) message).getText().equals("m" + index)) {
                    wrong.add(index + " was " + message);
                    break;
                }
                if (name.equals("client") && index == 9) {
                    message.acknowledge();
                }
            }
            if (transacted) {
                second.commit();
            }
            second.close();
        } catch (Exception failure) {
            wrong.add(Judge.describe(failure));
        }
        try {
            connection.close();
        } catch (Exception failure) {
            wrong.add("close: " + Judge.describe(failure));
        }
        Connection after = connect(place);
        try {
            Session session = after.createSession(false, Session.AUTO_ACKNOWLEDGE);
            Message left = session.createConsumer(queue(session, place.get("queue").asText())).receive(NEVER);
            if (left != null) {
                wrong.add("left in the queue: " + ((TextMessage) left).getText());
            }
        } finally {
            after.close();
        }
        return wrong.isEmpty() ? null : Values.JSON.valueToTree(wrong);
    }

    private static void publish(JsonNode place, int count) throws Exception {
        Connection connection = connect(place);
        try {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageProducer producer = session.createProducer(queue(session, place.get("queue").asText()));
            for (int index = 0; index < count; index++) {
                producer.send(session.createTextMessage("m" + index));
            }
        } finally {
            connection.close();
        }
    }
}
