import gateway.ApiClient;
import gateway.ApiException;
import gateway.api.PublishApi;
import gateway.api.PublishApi.APIPublishRequest;
import gateway.api.SubscriptionsApi;
import gateway.api.TopologyApi;
import gateway.model.AckRequest;
import gateway.model.AckResult;
import gateway.model.PublishRequest;
import gateway.model.PublishRequestRoutingKey;
import gateway.model.PullRequest;
import gateway.model.PulledMessage;
import gateway.model.QueueSettings;
import gateway.model.SubscriptionSettings;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Publish once, pull and acknowledge, with a generated client: java Main QUEUE */
public class Main {
    private static final String BROKER = "local-0-9-1";

    public static void main(String[] args) throws ApiException {
        ApiClient client = new ApiClient();
        client.updateBaseUri(System.getenv().getOrDefault("GATEWAY_URL", "http://127.0.0.1:8080"));
        PublishApi publishes = new PublishApi(client);
        SubscriptionsApi subscriptions = new SubscriptionsApi(client);
        String queue = args[0];

        new TopologyApi(client).putQueue(TopologyApi.APIPutQueueRequest.newBuilder()
            .broker(BROKER).queue(queue).queueSettings(new QueueSettings().durable(true)).build());
        subscriptions.putSubscription(SubscriptionsApi.APIPutSubscriptionRequest.newBuilder()
            .subscription(queue).subscriptionSettings(new SubscriptionSettings().broker(BROKER).queue(queue)).build());
        for (int turn = 0; turn < 2; turn++) { // after any failure send the same again: nothing is published twice
            System.out.println(publishes.publish(message(queue)
                .idempotencyKey(queue + " 7").build()).getStatus());
        }
        List<String> ackIds = new ArrayList<>();
        for (PulledMessage item : subscriptions.pull(SubscriptionsApi.APIPullRequest.newBuilder()
                .subscription(queue).pullRequest(new PullRequest().maxMessages(10L).waitSeconds(5.0)).build())
                .getMessages()) {
            System.out.println(item.getMessage().getPayload());
            ackIds.add(item.getAckId());
        }
        for (AckResult result : subscriptions.acknowledge(SubscriptionsApi.APIAcknowledgeRequest.newBuilder()
                .subscription(queue).ackRequest(new AckRequest().ackIds(ackIds)).build()).getResults()) {
            System.out.println(result.getStatus());
        }
        try {
            publishes.publish(message("nowhere").build());
        } catch (ApiException error) {
            System.out.println(error.getCode()); // no queue takes it: 422
        }
    }

    private static APIPublishRequest.Builder message(String routingKey) {
        return APIPublishRequest.newBuilder().broker(BROKER).exchange("amq.default").publishRequest(
            new PublishRequest().routingKey(new PublishRequestRoutingKey(routingKey)).payload(Map.of("order", 7)));
    }
}
