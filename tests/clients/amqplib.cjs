// An application on amqplib 0.10 with its defaults: it offers RabbitMQ a frame_max of 4096.
const amqp = require('amqplib');

const SIZES = [1, 5_000, 100_000];

async function main() {
  const connection = await amqp.connect(process.env.AMQP_URL);
  const channel = await connection.createConfirmChannel();
  const { queue } = await channel.assertQueue('', { exclusive: true });
  for (const size of SIZES) {
    channel.sendToQueue(queue, Buffer.alloc(size, 'm'), { persistent: true });
  }
  await channel.waitForConfirms();
  const received = [];
  await new Promise((resolve) => channel.consume(queue, (message) => {
    received.push(message.content.length);
    channel.ack(message);
    if (received.length === SIZES.length) resolve();
  }));
  console.log(JSON.stringify(received));
  await connection.close();
}

main().catch((error) => {
  console.log(String(error));
  process.exitCode = 1;
});
