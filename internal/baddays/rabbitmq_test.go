package baddays_test

import "testing"

// rabbitMQDays are the rows under "RabbitMQ" in docs/bad-days.md. Each day has a file of its own.
var rabbitMQDays = []day{}

func TestRabbitMQ(t *testing.T) { runDays(t, "RabbitMQ", rabbitMQDays) }
