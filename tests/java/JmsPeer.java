package judge;

import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.Session;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.qpid.QpidException;
import org.apache.qpid.client.AMQConnection;
import org.apache.qpid.client.AMQDestination;
import org.apache.qpid.client.AMQQueue;
import org.apache.qpid.client.AMQSession;
import org.apache.qpid.client.AMQSession_0_8;
import org.apache.qpid.client.message.AMQMessageDelegate_0_8;
import org.apache.qpid.client.message.AbstractAMQMessageDelegate;
import org.apache.qpid.client.message.AbstractJMSMessage;
import org.apache.qpid.client.message.JMSBytesMessageFactory;
import org.apache.qpid.client.message.MessageFactoryRegistry;
import org.apache.qpid.framing.AMQFrame;
import org.apache.qpid.framing.AMQDataBlock;
import org.apache.qpid.framing.AMQShortString;
import org.apache.qpid.framing.BasicContentHeaderProperties;
import org.apache.qpid.framing.BasicPublishBody;
import org.apache.qpid.framing.CompositeAMQDataBlock;
import org.apache.qpid.framing.ContentBody;
import org.apache.qpid.framing.ContentHeaderBody;

/**
 * AMQP 0-8, 0-9 and 0-9-1 by Qpid's JMS client. Sending goes one layer below JMS, which would overwrite half of the
 * properties; receiving is JMS, with the properties read from its delegate.
 */
final class JmsPeer implements Peer {
    private static final int FRAME_OVERHEAD = 8;

    private final AMQConnection connection;
    private final AMQSession_0_8 session;
    private final Map<AbstractJMSMessage, Arrival> arrivals = new IdentityHashMap<>();

    JmsPeer(String version, String host, int port, String virtualHost, String user, String password) throws Exception {
        connection = connect(version, host, port, virtualHost, user, password, false);
        session = (AMQSession_0_8) connection.createSession(false, Session.CLIENT_ACKNOWLEDGE, 1);
        witness();
        connection.start();
    }

    /**
     * A JMS message replaces the content type by its own as soon as it is made, and what kind of message it is depends
     * on that content type. So every message becomes one of bytes, and its flags and content type are noted before.
     */
    private void witness() throws ReflectiveOperationException {
        Field field = AMQSession.class.getDeclaredField("_messageFactoryRegistry");
        field.setAccessible(true);
        MessageFactoryRegistry registry = (MessageFactoryRegistry) field.get(session);
        Field kinds = MessageFactoryRegistry.class.getDeclaredField("_mimeStringToFactoryMap");
        kinds.setAccessible(true);
        ((Map<?, ?>) kinds.get(registry)).clear();
        Field otherwise = MessageFactoryRegistry.class.getDeclaredField("_default");
        otherwise.setAccessible(true);
        otherwise.set(registry, new JMSBytesMessageFactory() {
            @Override
            protected AbstractJMSMessage createMessage(AbstractAMQMessageDelegate delegate, ByteBuffer data) throws QpidException {
                BasicContentHeaderProperties properties = ((AMQMessageDelegate_0_8) delegate).getContentHeaderProperties();
                int flags = properties.getPropertyFlags();
                String contentType = properties.getContentTypeAsString();
                AbstractJMSMessage message = super.createMessage(delegate, data);
                synchronized (arrivals) {
                    arrivals.put(message, new Arrival(flags, contentType));
                }
                return message;
            }
        });
    }

    private static final class Arrival {
        final int flags;
        final String contentType;

        Arrival(int flags, String contentType) {
            this.flags = flags;
            this.contentType = contentType;
        }
    }

    /** {@code declare}: whether the client declares and binds what it uses, as it does when left alone. */
    static AMQConnection connect(String version, String host, int port, String virtualHost, String user, String password,
                                 boolean declare) throws Exception {
        System.setProperty("qpid.amqp.version", version);
        System.setProperty("qpid.declare_queues", String.valueOf(declare));
        System.setProperty("qpid.declare_exchanges", String.valueOf(declare));
        System.setProperty("qpid.bind_queues", String.valueOf(declare));
        String name = virtualHost.startsWith("/") ? virtualHost.substring(1) : virtualHost;
        String url = "amqp://" + user + ":" + password + "@judge/" + name + "?failover='nofailover'&sync_publish='all'"
                + "&brokerlist='tcp://" + host + ":" + port + "?connecttimeout='10000''";
        return new AMQConnection(url);
    }

    @Override
    public void declareQueue(JsonNode command) throws Exception {
        Map<String, Object> arguments = Values.toMap(command.get("arguments"));
        session.createQueue(command.get("queue").asText(), command.path("auto_delete").asBoolean(),
                command.path("durable").asBoolean(), command.path("exclusive").asBoolean(), arguments);
    }

    @Override
    public void bindQueue(String queue, String exchange, String routingKey) throws Exception {
        AMQDestination destination = new AMQQueue(exchange, routingKey, queue);
        session.bindQueue(queue, routingKey, null, exchange, destination);
    }

    @Override
    public void deleteQueue(String queue) throws Exception {
        session.deleteQueue(queue);
    }

    @Override
    public void publish(String exchange, String routingKey, JsonNode messages) throws Exception {
        int channel = session.getChannelId();
        int largest = (int) connection.getMaximumFrameSize() - FRAME_OVERHEAD;
        for (JsonNode message : messages) {
            byte[] body = Values.octets(message, "body");
            BasicPublishBody method = new BasicPublishBody(0, AMQShortString.valueOf(exchange),
                    AMQShortString.valueOf(routingKey), false, false);
            List<AMQDataBlock> frames = new ArrayList<>();
            frames.add(new AMQFrame(channel, method));
            frames.add(ContentHeaderBody.createAMQFrame(channel, properties(message), body.length));
            for (int at = 0; at < body.length; at += largest) {
                ByteBuffer part = ByteBuffer.wrap(body, at, Math.min(largest, body.length - at)).slice();
                frames.add(ContentBody.createAMQFrame(channel, new ContentBody(part)));
            }
            CompositeAMQDataBlock block = new CompositeAMQDataBlock(frames.toArray(new AMQDataBlock[0]));
            connection.getProtocolHandler().writeFrame(block, true);
        }
        session.sync();
    }

    private static BasicContentHeaderProperties properties(JsonNode message) {
        BasicContentHeaderProperties properties = new BasicContentHeaderProperties();
        if (message.hasNonNull("content_type")) {
            properties.setContentType(Values.text(message, "content_type"));
        }
        if (message.hasNonNull("content_encoding")) {
            properties.setEncoding(Values.text(message, "content_encoding"));
        }
        if (message.hasNonNull("headers")) {
            properties.setHeaders(Values.toTable(message.get("headers")));
        }
        if (message.hasNonNull("delivery_mode")) {
            properties.setDeliveryMode((byte) message.get("delivery_mode").asInt());
        }
        if (message.hasNonNull("priority")) {
            properties.setPriority((byte) message.get("priority").asInt());
        }
        if (message.hasNonNull("correlation_id")) {
            properties.setCorrelationId(Values.text(message, "correlation_id"));
        }
        if (message.hasNonNull("reply_to")) {
            properties.setReplyTo(Values.text(message, "reply_to"));
        }
        if (message.hasNonNull("expiration")) {
            properties.setExpiration(message.get("expiration").asLong());
        }
        if (message.hasNonNull("message_id")) {
            properties.setMessageId(Values.text(message, "message_id"));
        }
        if (message.hasNonNull("timestamp")) {
            properties.setTimestamp(message.get("timestamp").asLong());
        }
        if (message.hasNonNull("type")) {
            properties.setType(Values.text(message, "type"));
        }
        if (message.hasNonNull("user_id")) {
            properties.setUserId(Values.text(message, "user_id"));
        }
        if (message.hasNonNull("app_id")) {
            properties.setAppId(Values.text(message, "app_id"));
        }
        if (message.hasNonNull("cluster_id")) {
            properties.setClusterId(Values.text(message, "cluster_id"));
        }
        return properties;
    }

    @Override
    public JsonNode consume(String queue, int count, long milliseconds, String settlement) throws Exception {
        ArrayNode result = Values.JSON.createArrayNode();
        MessageConsumer consumer = session.createConsumer(new AMQQueue("", queue, queue));
        long deadline = System.nanoTime() + milliseconds * 1_000_000;
        Message last = null;
        while (result.size() < count) {
            Message message = consumer.receive(Math.max(1, (deadline - System.nanoTime()) / 1_000_000));
            if (message == null) {
                break;
            }
            result.add(describe((AbstractJMSMessage) message));
            last = message;
            if (settlement.equals("accept")) {
                message.acknowledge();
            }
        }
        if (last != null && settlement.equals("release")) {
            session.recover();
        }
        consumer.close();
        return result;
    }

    private ObjectNode describe(AbstractJMSMessage message) throws Exception {
        BasicContentHeaderProperties properties = ((AMQMessageDelegate_0_8) message.getDelegate()).getContentHeaderProperties();
        AMQDestination destination = (AMQDestination) message.getJMSDestination();
        ObjectNode result = Values.JSON.createObjectNode();
        ByteBuffer data = message.getData();
        byte[] body = new byte[data == null ? 0 : data.remaining()];
        if (data != null) {
            data.duplicate().get(body);
        }
        result.put("body", Values.base64(body));
        result.put("redelivered", message.getJMSRedelivered());
        result.put("exchange", destination.getExchangeName());
        result.put("routing_key", destination.getRoutingKey());
        Arrival arrival;
        synchronized (arrivals) {
            arrival = arrivals.remove(message);
        }
        int flags = arrival.flags;
        put(result, flags, 15, "content_type", arrival.contentType);
        put(result, flags, 14, "content_encoding", properties.getEncodingAsString());
        if ((flags & 1 << 13) != 0) {
            result.set("headers", Values.fromTable(properties.getHeaders()));
        }
        put(result, flags, 12, "delivery_mode", properties.getDeliveryMode());
        put(result, flags, 11, "priority", properties.getPriority());
        put(result, flags, 10, "correlation_id", properties.getCorrelationIdAsString());
        put(result, flags, 9, "reply_to", properties.getReplyToAsString());
        put(result, flags, 8, "expiration", properties.getExpiration());
        put(result, flags, 7, "message_id", properties.getMessageIdAsString());
        put(result, flags, 6, "timestamp", properties.getTimestamp());
        put(result, flags, 5, "type", properties.getTypeAsString());
        put(result, flags, 4, "user_id", properties.getUserIdAsString());
        put(result, flags, 3, "app_id", properties.getAppIdAsString());
        put(result, flags, 2, "cluster_id", properties.getClusterIdAsString());
        return result;
    }

    private static void put(ObjectNode result, int flags, int bit, String name, Object value) {
        if ((flags & 1 << bit) != 0) {
            result.putPOJO(name, value);
        }
    }

    @Override
    public void close() throws Exception {
        connection.close();
    }
}
