// Publish once, pull and acknowledge, with a generated client: main QUEUE
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	gateway "example.com/clients/gateway"
)

const broker = "local-0-9-1"

func main() {
	log.SetFlags(0)
	queue, address := os.Args[1], os.Getenv("GATEWAY_URL")
	if address == "" {
		address = "http://127.0.0.1:8080"
	}
	configuration := gateway.NewConfiguration()
	configuration.Servers = gateway.ServerConfigurations{{URL: address}}
	client, ctx := gateway.NewAPIClient(configuration), context.Background()

	_, _, err := client.TopologyAPI.PutQueue(ctx, broker, queue).
		QueueSettings(gateway.QueueSettings{Durable: gateway.PtrBool(true)}).Execute()
	check(err)
	_, _, err = client.SubscriptionsAPI.PutSubscription(ctx, queue).
		SubscriptionSettings(gateway.SubscriptionSettings{Broker: broker, Queue: &queue}).Execute()
	check(err)
	for range 2 { // after any failure send the same again: nothing is published twice
		published, _, err := client.PublishAPI.Publish(ctx, broker, "amq.default").
			PublishRequest(message(queue)).IdempotencyKey(queue + " 7").Execute()
		check(err)
		fmt.Println(published.Status)
	}
	pulled, _, err := client.SubscriptionsAPI.Pull(ctx, queue).
		PullRequest(gateway.PullRequest{MaxMessages: gateway.PtrInt64(10), WaitSeconds: gateway.PtrFloat64(5)}).Execute()
	check(err)
	var ackIds []string
	for _, item := range pulled.Messages {
		fmt.Println(item.Message.Payload)
		ackIds = append(ackIds, item.AckId)
	}
	answer, _, err := client.SubscriptionsAPI.Acknowledge(ctx, queue).AckRequest(gateway.AckRequest{AckIds: ackIds}).Execute()
	check(err)
	for _, result := range answer.Results {
		fmt.Println(result.Status)
	}
	_, response, err := client.PublishAPI.Publish(ctx, broker, "amq.default").PublishRequest(message("nowhere")).Execute()
	if err == nil {
		log.Fatal("no queue takes it, and it was no error")
	}
	fmt.Println(response.StatusCode) // 422
}

func message(queue string) gateway.PublishRequest {
	key := gateway.StringAsPublishRequestRoutingKey(&queue)
	return gateway.PublishRequest{RoutingKey: &key, Payload: map[string]any{"order": 7}}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
