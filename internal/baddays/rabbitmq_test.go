package baddays_test

import "testing"

// rabbitMQDays are the rows under "RabbitMQ" in docs/bad-days.md. Each day has a file of its own.
var rabbitMQDays = []day{
	{name: "Messages that the client cannot decode", run: unreadableMessages},
	{name: "A stranger's x-delivery-count", run: strangeDeliveryCount},
	{name: "An instance that was busy with fast messages", long: true, run: warmInstance},
	{name: "The sending connection away", long: true, run: sendingAway},
	{name: "A consumer_timeout shorter than the prefetch takes", long: true, run: consumerTimeout},
	{name: "The user lacks the right to write to one exchange", run: refusedExchange},
	{name: "The queue that messages are delayed to is full", run: fullTarget},
	{name: "A quorum queue confirms nothing", run: silentQueue},
	{name: "Two of three nodes of a cluster end", long: true, run: lostMajority},
	{name: "The error queue is full", run: fullErrors},
	{name: "Delayed messages of an older version wait", run: oldDelays},
	{name: "The broker has a memory alarm", long: true, run: memoryAlarm},
	{name: "Many delayed messages are due in the same second", long: true, run: manyDueAtOnce},
}

func TestChaosDaysOfRabbitMQ(t *testing.T) { runDays(t, "RabbitMQ", rabbitMQDays) }
