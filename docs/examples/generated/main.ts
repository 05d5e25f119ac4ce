// Publish once, pull and acknowledge, with a generated client: node main.js QUEUE
import { Configuration, PublishApi, ResponseError, SubscriptionsApi, TopologyApi } from './client';

declare const process: { argv: string[]; env: Record<string, string | undefined> };

const broker = 'local-0-9-1';
const queue = process.argv[2] ?? 'orders';
const configuration = new Configuration({ basePath: process.env.GATEWAY_URL ?? 'http://127.0.0.1:8080' });
const publishes = new PublishApi(configuration);
const subscriptions = new SubscriptionsApi(configuration);

async function main(): Promise<void> {
    await new TopologyApi(configuration).putQueue({ broker, queue, queueSettings: { durable: true } });
    await subscriptions.putSubscription({ subscription: queue, subscriptionSettings: { broker, queue } });
    const order = {
        broker, exchange: 'amq.default', idempotencyKey: `${queue} 7`,
        publishRequest: { routingKey: queue, payload: { order: 7 } },
    };
    for (let turn = 0; turn < 2; turn++) { // after any failure send the same again: nothing is published twice
        console.log((await publishes.publish(order)).status);
    }
    const pulled = await subscriptions.pull({ subscription: queue, pullRequest: { maxMessages: 10, waitSeconds: 5 } });
    for (const item of pulled.messages) {
        console.log(item.message.payload);
    }
    const ackIds = pulled.messages.map((item) => item.ackId);
    const answer = await subscriptions.acknowledge({ subscription: queue, ackRequest: { ackIds } });
    console.log(answer.results.map((result) => result.status));
    try {
        await publishes.publish({ broker, exchange: 'amq.default', publishRequest: { routingKey: 'nowhere' } });
    } catch (error) {
        if (!(error instanceof ResponseError)) {
            throw error;
        }
        console.log(error.response.status); // no queue takes it: 422
    }
}

void main();
