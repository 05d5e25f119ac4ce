package judge;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.List;
import java.util.UUID;
import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.JMSException;
import javax.jms.MapMessage;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Queue;
import javax.jms.QueueBrowser;
import javax.jms.Session;
import javax.jms.TemporaryQueue;
import javax.jms.TextMessage;
import javax.jms.Topic;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

/** What applications do with JMS, one step after the other, each against a broker that it knows nothing about. */
final class Scenario {
    private static final long SOON = 5000;
    private static final long NEVER = 300;
    private static final long PATIENCE = 20_000;

    private interface Step {
        void run(Scenario scenario, Session session) throws Exception;
    }

    private static final class Named {
        final String name;
        final boolean transacted;
        final int mode;
        final Step step;

        Named(String name, int mode, Step step) {
            this.name = name;
            this.transacted = mode == Session.SESSION_TRANSACTED;
            this.mode = mode;
            this.step = step;
        }
    }

    private static final List<Named> STEPS = Arrays.asList(
            new Named("send and receive", Session.AUTO_ACKNOWLEDGE, Scenario::sendAndReceive),
            new Named("every kind of body and property", Session.AUTO_ACKNOWLEDGE, Scenario::bodiesAndProperties),
            new Named("a large body", Session.AUTO_ACKNOWLEDGE, Scenario::largeBody),
            new Named("in order, many", Session.AUTO_ACKNOWLEDGE, Scenario::inOrder),
            new Named("recover marks as redelivered", Session.CLIENT_ACKNOWLEDGE, Scenario::recover),
            new Named("commit and rollback", Session.SESSION_TRANSACTED, Scenario::commitAndRollback),
            new Named("browse leaves messages", Session.AUTO_ACKNOWLEDGE, Scenario::browse),
            new Named("selector", Session.AUTO_ACKNOWLEDGE, Scenario::selector),
            new Named("topic to two subscribers", Session.AUTO_ACKNOWLEDGE, Scenario::topic),
            new Named("request and reply by a temporary queue", Session.AUTO_ACKNOWLEDGE, Scenario::requestReply),
            new Named("listener", Session.AUTO_ACKNOWLEDGE, Scenario::listener),
            new Named("durable subscription outlives its connection", Session.AUTO_ACKNOWLEDGE, Scenario::durable),
            new Named("time to live", Session.AUTO_ACKNOWLEDGE, Scenario::timeToLive));

    private final JsonNode command;

    private Scenario(JsonNode command) {
        this.command = command;
    }

    /** Name of each step -> null, or what went wrong; all steps, or the one that the command names. */
    static JsonNode run(JsonNode command) throws Exception {
        Scenario scenario = new Scenario(command);
        ObjectNode result = Values.JSON.createObjectNode();
        String only = Values.text(command, "only");
        for (Named named : STEPS) {
            if (only != null && !only.equals(named.name)) {
                continue;
            }
            result.put(named.name, scenario.attempt(named));
        }
        if (only == null) {
            result.set("wrong password is refused", scenario.wrongPassword());
        }
        return result;
    }

    /** Run a step on a thread of its own, for this client may wait for ever; null, or what went wrong. */
    private String attempt(Named named) throws InterruptedException {
        String[] outcome = {"it took longer than " + PATIENCE + " ms"};
        Thread thread = new Thread(() -> outcome[0] = carryOut(named), named.name);
        thread.setDaemon(true);
        thread.start();
        thread.join(PATIENCE);
        return outcome[0];
    }

    private String carryOut(Named named) {
        Connection connection = null;
        String outcome = null;
        try {
            connection = connect();
            connection.start();
            named.step.run(this, connection.createSession(named.transacted, named.mode));
        } catch (Exception | AssertionError failure) {
            outcome = Judge.describe(failure);
        } finally {
            if (connection != null) {
                try {
                    connection.close();
                } catch (JMSException failure) {
                    outcome = (outcome == null ? "" : outcome + "; ") + "close: " + Judge.describe(failure);
                }
            }
        }
        return outcome;
    }

    private Connection connect() throws Exception {
        return connect(Values.text(command, "password", "guest"));
    }

    private Connection connect(String password) throws Exception {
        return JmsPeer.connect(command.get("version").asText(), command.get("host").asText(), command.get("port").asInt(),
                Values.text(command, "virtual_host", "/"), Values.text(command, "user", "guest"), password, true);
    }

    private JsonNode wrongPassword() {
        try {
            connect("wrong").close();
        } catch (Exception expected) {
            return Values.JSON.nullNode();
        }
        return Values.JSON.getNodeFactory().textNode("it was accepted");
    }

    private static String unique(String stem) {
        return stem + "-" + UUID.randomUUID();
    }

    /** A new queue, by a binding URL or by an address: the client resolves the two in different ways. */
    private Queue queue(Session session) throws JMSException {
        String name = unique("jms");
        boolean url = Values.text(command, "syntax", "ADDR").equals("BURL");
        return session.createQueue(url ? "BURL:direct://amq.direct/" + name + "/" + name : "ADDR:" + name + "; {create: always}");
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static String textOf(Message message) throws JMSException {
        check(message != null, "no message came");
        return ((TextMessage) message).getText();
    }

    // ------------------------------------------------------------------------------------------- steps

    private void sendAndReceive(Session session) throws Exception {
        Queue queue = queue(session);
        MessageConsumer consumer = session.createConsumer(queue);
        session.createProducer(queue).send(session.createTextMessage("hello \u00e9"));
        Message message = consumer.receive(SOON);
        check(textOf(message).equals("hello \u00e9"), "another text");
        check(!message.getJMSRedelivered(), "it is marked as redelivered");
        check(consumer.receive(NEVER) == null, "a second message");
    }

    private void bodiesAndProperties(Session session) throws Exception {
        Queue queue = queue(session);
        MessageConsumer consumer = session.createConsumer(queue);
        MessageProducer producer = session.createProducer(queue);
        BytesMessage bytes = session.createBytesMessage();
        bytes.writeBytes(new byte[] {0, 1, (byte) 0xff});
        bytes.setJMSCorrelationID("correlation");
        bytes.setJMSType("type");
        bytes.setBooleanProperty("boolean", true);
        bytes.setByteProperty("byte", (byte) -3);
        bytes.setShortProperty("short", (short) -300);
        bytes.setIntProperty("int", -70_000);
        bytes.setLongProperty("long", 1L << 40);
        bytes.setFloatProperty("float", 1.5f);
        bytes.setDoubleProperty("double", 0.1);
        bytes.setStringProperty("string", "\u00fc");
        producer.setPriority(7);
        producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
        producer.send(bytes);
        MapMessage map = session.createMapMessage();
        map.setInt("n", 5);
        map.setString("s", "text");
        producer.send(map);
        BytesMessage got = (BytesMessage) consumer.receive(SOON);
        check(got != null, "no bytes came");
        byte[] body = new byte[(int) got.getBodyLength()];
        got.readBytes(body);
        check(Arrays.equals(body, new byte[] {0, 1, (byte) 0xff}), "another body");
        check(got.getJMSCorrelationID().equals("correlation"), "another correlation id");
        check(got.getJMSType().equals("type"), "another type");
        check(got.getJMSPriority() == 7, "another priority");
        check(got.getJMSDeliveryMode() == DeliveryMode.NON_PERSISTENT, "another delivery mode");
        check(got.getJMSMessageID().equals(bytes.getJMSMessageID()), "another message id");
        check(got.getBooleanProperty("boolean"), "another boolean");
        check(got.getByteProperty("byte") == -3, "another byte");
        check(got.getShortProperty("short") == -300, "another short");
        check(got.getIntProperty("int") == -70_000, "another int");
        check(got.getLongProperty("long") == 1L << 40, "another long");
        check(got.getFloatProperty("float") == 1.5f, "another float");
        check(got.getDoubleProperty("double") == 0.1, "another double");
        check(got.getStringProperty("string").equals("\u00fc"), "another string");
        MapMessage gotMap = (MapMessage) consumer.receive(SOON);
        check(gotMap != null && gotMap.getInt("n") == 5 && gotMap.getString("s").equals("text"), "another map");
    }

    private void largeBody(Session session) throws Exception {
        Queue queue = queue(session);
        MessageConsumer consumer = session.createConsumer(queue);
        byte[] octets = new byte[1_000_003];
        for (int index = 0; index < octets.length; index++) {
            octets[index] = (byte) (index * 31);
        }
        BytesMessage message = session.createBytesMessage();
        message.writeBytes(octets);
        session.createProducer(queue).send(message);
        BytesMessage got = (BytesMessage) consumer.receive(SOON);
        check(got != null, "no message came");
        byte[] body = new byte[(int) got.getBodyLength()];
        got.readBytes(body);
        check(Arrays.equals(body, octets), "another body");
    }

    private void inOrder(Session session) throws Exception {
        Queue queue = queue(session);
        MessageConsumer consumer = session.createConsumer(queue);
        MessageProducer producer = session.createProducer(queue);
        for (int index = 0; index < 1200; index++) {
            producer.send(session.createTextMessage(Integer.toString(index)));
        }
        for (int index = 0; index < 1200; index++) {
            check(textOf(consumer.receive(SOON)).equals(Integer.toString(index)), "out of order at " + index);
        }
    }

    private void recover(Session session) throws Exception {
        Queue queue = queue(session);
        MessageConsumer consumer = session.createConsumer(queue);
        MessageProducer producer = session.createProducer(queue);
        producer.send(session.createTextMessage("a"));
        producer.send(session.createTextMessage("b"));
        check(textOf(consumer.receive(SOON)).equals("a"), "not a first");
        check(textOf(consumer.receive(SOON)).equals("b"), "not b second");
        session.recover();
        Message again = consumer.receive(SOON);
        check(textOf(again).equals("a") && again.getJMSRedelivered(), "a did not come back as redelivered");
        again = consumer.receive(SOON);
        check(textOf(again).equals("b") && again.getJMSRedelivered(), "b did not come back as redelivered");
        again.acknowledge();
        session.recover();
        check(consumer.receive(NEVER) == null, "an acknowledged message came back");
    }

    private void commitAndRollback(Session session) throws Exception {
        Queue queue = queue(session);
        MessageConsumer consumer = session.createConsumer(queue);
        MessageProducer producer = session.createProducer(queue);
        producer.send(session.createTextMessage("undone"));
        session.rollback();
        producer.send(session.createTextMessage("kept"));
        check(consumer.receive(NEVER) == null, "a message came before its commit");
        session.commit();
        check(textOf(consumer.receive(SOON)).equals("kept"), "not the committed one");
        session.rollback();
        Message again = consumer.receive(SOON);
        check(textOf(again).equals("kept") && again.getJMSRedelivered(), "it did not come back as redelivered");
        session.commit();
        check(consumer.receive(NEVER) == null, "a settled message came back");
    }

    private void browse(Session session) throws Exception {
        Queue queue = queue(session);
        session.createConsumer(queue).close();
        MessageProducer producer = session.createProducer(queue);
        for (String text : Arrays.asList("a", "b", "c")) {
            producer.send(session.createTextMessage(text));
        }
        for (int round = 0; round < 2; round++) {
            QueueBrowser browser = session.createBrowser(queue);
            List<String> seen = new ArrayList<>();
            Enumeration<?> all = browser.getEnumeration();
            while (all.hasMoreElements()) {
                seen.add(textOf((Message) all.nextElement()));
            }
            check(seen.equals(Arrays.asList("a", "b", "c")), "seen: " + seen);
            browser.close();
        }
        MessageConsumer consumer = session.createConsumer(queue);
        for (String text : Arrays.asList("a", "b", "c")) {
            check(textOf(consumer.receive(SOON)).equals(text), "not " + text);
        }
    }

    private void selector(Session session) throws Exception {
        Queue queue = queue(session);
        session.createConsumer(queue).close();
        MessageProducer producer = session.createProducer(queue);
        for (int index = 0; index < 4; index++) {
            TextMessage message = session.createTextMessage(Integer.toString(index));
            message.setIntProperty("n", index);
            producer.send(message);
        }
        MessageConsumer consumer = session.createConsumer(queue, "n >= 2");
        check(textOf(consumer.receive(SOON)).equals("2"), "not 2");
        check(textOf(consumer.receive(SOON)).equals("3"), "not 3");
        check(consumer.receive(NEVER) == null, "one more");
    }

    private void topic(Session session) throws Exception {
        Topic topic = session.createTopic(unique("news"));
        MessageConsumer first = session.createConsumer(topic);
        MessageConsumer second = session.createConsumer(topic);
        session.createProducer(topic).send(session.createTextMessage("extra"));
        check(textOf(first.receive(SOON)).equals("extra"), "the first got another");
        check(textOf(second.receive(SOON)).equals("extra"), "the second got another");
    }

    private void requestReply(Session session) throws Exception {
        Queue queue = queue(session);
        MessageConsumer server = session.createConsumer(queue);
        TemporaryQueue answers = session.createTemporaryQueue();
        MessageConsumer client = session.createConsumer(answers);
        TextMessage request = session.createTextMessage("question");
        request.setJMSReplyTo(answers);
        session.createProducer(queue).send(request);
        Message got = server.receive(SOON);
        check(textOf(got).equals("question"), "another question");
        TextMessage reply = session.createTextMessage("answer");
        reply.setJMSCorrelationID(got.getJMSMessageID());
        session.createProducer(null).send(got.getJMSReplyTo(), reply);
        Message answer = client.receive(SOON);
        check(textOf(answer).equals("answer"), "another answer");
        check(answer.getJMSCorrelationID().equals(request.getJMSMessageID()), "another correlation id");
        client.close();
        answers.delete();
    }

    private void listener(Session session) throws Exception {
        Queue queue = queue(session);
        java.util.concurrent.CountDownLatch all = new java.util.concurrent.CountDownLatch(20);
        session.createConsumer(queue).setMessageListener(message -> all.countDown());
        Connection other = connect();
        try {
            Session sender = other.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageProducer producer = sender.createProducer(queue);
            for (int index = 0; index < 20; index++) {
                producer.send(sender.createTextMessage("x"));
            }
        } finally {
            other.close();
        }
        check(all.await(SOON, java.util.concurrent.TimeUnit.MILLISECONDS), all.getCount() + " did not come");
    }

    private void durable(Session session) throws Exception {
        String name = unique("durable");
        Topic topic = session.createTopic(unique("news"));
        Connection first = connect();
        first.start();
        first.createSession(false, Session.AUTO_ACKNOWLEDGE).createDurableSubscriber(topic, name);
        first.close();
        session.createProducer(topic).send(session.createTextMessage("meanwhile"));
        Connection second = connect();
        try {
            second.start();
            Session again = second.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageConsumer subscriber = again.createDurableSubscriber(topic, name);
            check(textOf(subscriber.receive(SOON)).equals("meanwhile"), "another message");
            subscriber.close();
            again.unsubscribe(name);
        } finally {
            second.close();
        }
    }

    private void timeToLive(Session session) throws Exception {
        Queue queue = queue(session);
        session.createConsumer(queue).close();
        MessageProducer producer = session.createProducer(queue);
        producer.setTimeToLive(1);
        producer.send(session.createTextMessage("gone"));
        producer.setTimeToLive(600_000);
        producer.send(session.createTextMessage("there"));
        Thread.sleep(NEVER);
        check(textOf(session.createConsumer(queue).receive(SOON)).equals("there"), "an expired message came");
    }
}
