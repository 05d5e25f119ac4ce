package judge;

import com.fasterxml.jackson.databind.JsonNode;

/** One connection of an independent client. Every call returns when the broker has answered. */
interface Peer {
    void declareQueue(JsonNode command) throws Exception;

    void bindQueue(String queue, String exchange, String routingKey) throws Exception;

    void deleteQueue(String queue) throws Exception;

    /** Publish each of {@code messages} to the exchange with the routing key; they are safe when it returns. */
    void publish(String exchange, String routingKey, JsonNode messages) throws Exception;

    /** Take up to {@code count} messages, settle them, and return them. */
    JsonNode consume(String queue, int count, long milliseconds, String settlement) throws Exception;

    void close() throws Exception;
}
