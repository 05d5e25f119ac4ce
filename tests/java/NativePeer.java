package judge;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

import javax.security.auth.callback.Callback;
import javax.security.auth.callback.NameCallback;
import javax.security.auth.callback.PasswordCallback;
import javax.security.sasl.Sasl;
import javax.security.sasl.SaslClient;
import javax.security.sasl.SaslException;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.qpid.transport.ClientDelegate;
import org.apache.qpid.transport.Connection;
import org.apache.qpid.transport.ConnectionSettings;
import org.apache.qpid.transport.DeliveryProperties;
import org.apache.qpid.transport.Future;
import org.apache.qpid.transport.Header;
import org.apache.qpid.transport.MessageAcceptMode;
import org.apache.qpid.transport.MessageAcquireMode;
import org.apache.qpid.transport.MessageCreditUnit;
import org.apache.qpid.transport.MessageDeliveryMode;
import org.apache.qpid.transport.MessageDeliveryPriority;
import org.apache.qpid.transport.MessageFlowMode;
import org.apache.qpid.transport.MessageProperties;
import org.apache.qpid.transport.MessageRejectCode;
import org.apache.qpid.transport.MessageTransfer;
import org.apache.qpid.transport.Option;
import org.apache.qpid.transport.RangeSet;
import org.apache.qpid.transport.RangeSetFactory;
import org.apache.qpid.transport.ReplyTo;
import org.apache.qpid.transport.Session;
import org.apache.qpid.transport.SessionException;
import org.apache.qpid.transport.SessionListener;
import org.apache.qpid.transport.XaResult;
import org.apache.qpid.transport.Xid;

/** AMQP 0-10 by the transport layer of Qpid's client: every field of a message, as it is on the wire. */
final class NativePeer implements Peer, SessionListener {
    private final Connection connection = new Connection();
    private final Session session;
    private final BlockingQueue<MessageTransfer> transfers = new LinkedBlockingQueue<>();
    private volatile SessionException failure;

    NativePeer(String host, int port, String virtualHost, String user, String password) {
        ConnectionSettings settings = new ConnectionSettings();
        settings.setHost(host);
        settings.setPort(port);
        settings.setVhost(virtualHost);
        settings.setUsername(user);
        settings.setPassword(password);
        settings.setSaslMechs("PLAIN");
        connection.setConnectionDelegate(new ClientDelegate(settings) {
            @Override
            protected SaslClient createSaslClient(List<Object> offered) throws SaslException {
                if (!offered.contains("PLAIN")) {
                    throw new SaslException("PLAIN is not among " + offered);
                }
                return Sasl.createSaslClient(new String[] {"PLAIN"}, null, "AMQP", host, null, callbacks -> {
                    for (Callback callback : callbacks) {
                        if (callback instanceof NameCallback) {
                            ((NameCallback) callback).setName(user);
                        } else {
                            ((PasswordCallback) callback).setPassword(password.toCharArray());
                        }
                    }
                });
            }
        });
        connection.connect(settings);
        session = connection.createSession(0);
        session.setSessionListener(this);
    }

    @Override
    public void declareQueue(JsonNode command) {
        List<Option> options = new ArrayList<>();
        if (command.path("durable").asBoolean()) {
            options.add(Option.DURABLE);
        }
        if (command.path("exclusive").asBoolean()) {
            options.add(Option.EXCLUSIVE);
        }
        if (command.path("auto_delete").asBoolean()) {
            options.add(Option.AUTO_DELETE);
        }
        Map<String, Object> arguments = Values.toMap(command.get("arguments"));
        session.queueDeclare(command.get("queue").asText(), null, arguments, options.toArray(new Option[0]));
        sync();
    }

    @Override
    public void bindQueue(String queue, String exchange, String routingKey) {
        session.exchangeBind(queue, exchange, routingKey, null);
        sync();
    }

    @Override
    public void deleteQueue(String queue) {
        session.queueDelete(queue);
        sync();
    }

    @Override
    public void publish(String exchange, String routingKey, JsonNode messages) {
        for (JsonNode message : messages) {
            Header header = new Header(deliveryProperties(message, routingKey), messageProperties(message));
            session.messageTransfer(exchange, MessageAcceptMode.EXPLICIT, MessageAcquireMode.PRE_ACQUIRED, header,
                    ByteBuffer.wrap(Values.octets(message, "body")));
        }
        sync();
    }

    private static DeliveryProperties deliveryProperties(JsonNode message, String routingKey) {
        DeliveryProperties properties = new DeliveryProperties().setRoutingKey(routingKey);
        if (message.hasNonNull("delivery_mode")) {
            properties.setDeliveryMode(MessageDeliveryMode.get((short) message.get("delivery_mode").asInt()));
        }
        if (message.hasNonNull("priority")) {
            properties.setPriority(MessageDeliveryPriority.get((short) message.get("priority").asInt()));
        }
        if (message.hasNonNull("ttl")) {
            properties.setTtl(message.get("ttl").asLong());
        }
        return properties;
    }

    private static MessageProperties messageProperties(JsonNode message) {
        MessageProperties properties = new MessageProperties();
        if (message.hasNonNull("message_id")) {
            properties.setMessageId(UUID.fromString(message.get("message_id").asText()));
        }
        if (message.hasNonNull("correlation_id")) {
            properties.setCorrelationId(Values.octets(message, "correlation_id"));
        }
        if (message.hasNonNull("reply_to")) {
            JsonNode replyTo = message.get("reply_to");
            properties.setReplyTo(new ReplyTo(replyTo.get(0).asText(), replyTo.get(1).asText()));
        }
        if (message.hasNonNull("content_type")) {
            properties.setContentType(message.get("content_type").asText());
        }
        if (message.hasNonNull("content_encoding")) {
            properties.setContentEncoding(message.get("content_encoding").asText());
        }
        if (message.hasNonNull("user_id")) {
            properties.setUserId(Values.octets(message, "user_id"));
        }
        if (message.hasNonNull("app_id")) {
            properties.setAppId(Values.octets(message, "app_id"));
        }
        if (message.hasNonNull("headers")) {
            properties.setApplicationHeaders(Values.toMap(message.get("headers")));
        }
        return properties;
    }

    @Override
    public JsonNode consume(String queue, int count, long milliseconds, String settlement) throws Exception {
        session.messageSubscribe(queue, "judge", MessageAcceptMode.EXPLICIT, MessageAcquireMode.PRE_ACQUIRED, null, 0, null);
        session.messageSetFlowMode("judge", MessageFlowMode.CREDIT);
        session.messageFlow("judge", MessageCreditUnit.BYTE, 0xFFFFFFFFL);
        session.messageFlow("judge", MessageCreditUnit.MESSAGE, count);
        sync();
        ArrayNode result = Values.JSON.createArrayNode();
        RangeSet taken = RangeSetFactory.createRangeSet();
        long deadline = System.nanoTime() + milliseconds * 1_000_000;
        while (result.size() < count) {
            MessageTransfer transfer = transfers.poll(Math.max(0, deadline - System.nanoTime()), TimeUnit.NANOSECONDS);
            if (transfer == null) {
                break;
            }
            taken.add(transfer.getId());
            result.add(describe(transfer));
        }
        if (result.size() > 0) {
            switch (settlement) {
                case "accept": session.messageAccept(taken); break;
                case "release": session.messageRelease(taken, Option.SET_REDELIVERED); break;
                case "reject": session.messageReject(taken, MessageRejectCode.UNSPECIFIED, "rejected"); break;
                default: throw new IllegalArgumentException("no such settlement: " + settlement);
            }
        }
        session.messageCancel("judge");
        sync();
        return result;
    }

    /** Every dtx command on branches of their own, and every query; what each said, in order. */
    JsonNode branches(String queue) {
        ArrayNode said = Values.JSON.createArrayNode();
        session.dtxSelect();
        Xid first = branch(1);
        said.add(status(session.dtxStart(first)));
        send(queue);
        said.add(status(session.dtxEnd(first, Option.SUSPEND)));
        said.add(status(session.dtxStart(first, Option.RESUME)));
        said.add(status(session.dtxEnd(first)));
        session.dtxSetTimeout(first, 60);
        said.add(session.dtxGetTimeout(first).get().getTimeout());
        said.add(status(session.dtxPrepare(first)));
        said.add(session.dtxRecover().get().getInDoubt().size());
        said.add(status(session.dtxCommit(first)));
        Xid second = branch(2);
        said.add(status(session.dtxStart(second)));
        send(queue);
        said.add(status(session.dtxEnd(second, Option.FAIL)));
        said.add(status(session.dtxRollback(second)));
        Xid third = branch(3);
        said.add(status(session.dtxStart(third)));
        send(queue);
        said.add(status(session.dtxEnd(third)));
        said.add(status(session.dtxCommit(third, Option.ONE_PHASE)));
        said.add(session.queueQuery(queue).get().getMessageCount());
        said.add(session.exchangeQuery("amq.direct").get().getType());
        said.add(session.exchangeBound("amq.direct", queue, "nowhere", null).get().getKeyNotMatched());
        session.queuePurge(queue);
        sync();
        session.dtxForget(first);
        try {
            sync();
        } catch (SessionException refused) {
            said.add(refused.getException().getErrorCode().name());
            failure = null;
        }
        return said;
    }

    private static Xid branch(int number) {
        return new Xid(7, "golden".getBytes(StandardCharsets.US_ASCII), new byte[] {(byte) number});
    }

    private static String status(Future<XaResult> result) {
        return result.get().getStatus().name();
    }

    private void send(String queue) {
        Header header = new Header(new DeliveryProperties().setRoutingKey(queue), new MessageProperties());
        session.messageTransfer("", MessageAcceptMode.EXPLICIT, MessageAcquireMode.PRE_ACQUIRED, header,
                ByteBuffer.wrap(new byte[] {1}));
    }

    private static ObjectNode describe(MessageTransfer transfer) {
        DeliveryProperties delivery = transfer.getHeader().getDeliveryProperties();
        MessageProperties message = transfer.getHeader().getMessageProperties();
        ObjectNode result = Values.JSON.createObjectNode();
        ByteBuffer buffer = transfer.getBody();
        byte[] body = new byte[buffer == null ? 0 : buffer.remaining()];
        if (buffer != null) {
            buffer.duplicate().get(body);
        }
        result.put("body", Values.base64(body));
        if (delivery != null) {
            result.put("redelivered", delivery.getRedelivered());
            if (delivery.hasExchange()) {
                result.put("exchange", delivery.getExchange());
            }
            if (delivery.hasRoutingKey()) {
                result.put("routing_key", delivery.getRoutingKey());
            }
            if (delivery.hasDeliveryMode()) {
                result.put("delivery_mode", delivery.getDeliveryMode().getValue());
            }
            if (delivery.hasPriority()) {
                result.put("priority", delivery.getPriority().getValue());
            }
            if (delivery.hasTtl()) {
                result.put("ttl", delivery.getTtl());
            }
            if (delivery.hasExpiration()) {
                result.put("expiration", delivery.getExpiration());
            }
            if (delivery.hasTimestamp()) {
                result.put("timestamp", delivery.getTimestamp());
            }
        }
        if (message != null) {
            if (message.hasMessageId()) {
                result.put("message_id", message.getMessageId().toString());
            }
            if (message.hasCorrelationId()) {
                result.put("correlation_id", Values.base64(message.getCorrelationId()));
            }
            if (message.hasReplyTo()) {
                result.putArray("reply_to").add(message.getReplyTo().getExchange()).add(message.getReplyTo().getRoutingKey());
            }
            if (message.hasContentType()) {
                result.put("content_type", message.getContentType());
            }
            if (message.hasContentEncoding()) {
                result.put("content_encoding", message.getContentEncoding());
            }
            if (message.hasUserId()) {
                result.put("user_id", Values.base64(message.getUserId()));
            }
            if (message.hasAppId()) {
                result.put("app_id", Values.base64(message.getAppId()));
            }
            if (message.hasApplicationHeaders()) {
                result.set("headers", Values.fromMap(message.getApplicationHeaders()));
            }
        }
        return result;
    }

    private void sync() {
        session.sync();
        if (failure != null) {
            throw failure;
        }
    }

    @Override
    public void close() {
        session.close();
        connection.close();
    }

    @Override
    public void opened(Session opened) {
    }

    @Override
    public void resumed(Session resumed) {
    }

    @Override
    public void message(Session source, MessageTransfer transfer) {
        transfers.add(transfer);
        source.processed(transfer);
    }

    @Override
    public void exception(Session source, SessionException exception) {
        failure = exception;
    }

    @Override
    public void closed(Session closed) {
    }
}
