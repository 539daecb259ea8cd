package baddays_test

import "testing"

// rabbitMQDays are the rows under "RabbitMQ" in docs/bad-days.md. Each day has a file of its own.
var rabbitMQDays = []day{
	{name: "Messages that the client cannot decode", run: unreadableMessages},
	{name: "A stranger's x-delivery-count", run: strangeDeliveryCount},
	{name: "An instance that was busy with fast messages", long: true, run: warmInstance},
	{name: "A consumer_timeout shorter than the prefetch takes", long: true, run: consumerTimeout},
}

func TestRabbitMQ(t *testing.T) { runDays(t, "RabbitMQ", rabbitMQDays) }
