package baddays_test

import "testing"

// rabbitMQDays are the rows under "RabbitMQ" in docs/bad-days.md. Each day has a file of its own.
var rabbitMQDays = []day{
	{name: "Messages that the client cannot decode", run: unreadableMessages},
}

func TestRabbitMQ(t *testing.T) { runDays(t, "RabbitMQ", rabbitMQDays) }
