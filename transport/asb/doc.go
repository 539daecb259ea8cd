// Package asb connects endpoints to Azure Service Bus, over AMQP 1.0 with Microsoft's client.
//
// # Delivery
//
// Messages are received under a lock that the endpoint renews, and completed after they are
// handled: at least once. The client offers no transaction over receiving and sending: the messages
// of a handler are sent before its message is completed, and sent again when the process dies in
// between. A settlement after the lock has expired fails with [transport.ErrLeaseLost] and cannot
// affect a later delivery. Where the service lets a lock outlive its connection, the message is
// settled by the lock's token over the next one. Otherwise it is delivered again.
//
// The service counts deliveries. A process tests with its first message whether a lock outlives its
// link. If so the count is exact: a delivery that ends with a crash is counted when its lock
// expires. Deliveries of dead letters are not counted. Release counts as an attempt: the client has
// no verb that returns a message without.
//
// A message that the service delivers more often than [Transport].MaxDeliveryCount becomes a dead
// letter of its queue. A running endpoint moves it from there to its error queue, with the
// service's reason.
//
// # Addresses
//
// A send goes to the queue of that name and fails with [transport.ErrNoQueue] if it does not exist.
// A publish goes to a topic chosen by [Topology]; if the topic does not exist the event has no
// subscribers, because subscribing creates it. Names of queues are not case-sensitive.
// "QUEUE/$DeadLetterQueue" is received from like a queue.
//
// Creating and subscribing need the right to manage the namespace. Without it existing queues and
// subscriptions are used, and an error names those that are missing.
//
// # Delays
//
// The service schedules delayed messages, for any time, and can cancel them. A delayed retry is a
// scheduled copy, sent before the original is completed: when the process dies in between both
// exist. The TTL of a delayed message begins when it is due.
//
// # Messages
//
// Headers travel as application properties, with the names and properties of NServiceBus.
// Properties of other producers become text: bytes as they are, numbers and booleans as in Go,
// times in the form of package header. The properties content-type, reply-to and correlation-id
// stand in for missing headers. The id is that of the header, or of the property, or is derived
// from the message's place in the queue, and then is the same at each delivery.
//
// The service's message id is the message's id, followed in copies by the numbers of delayed
// retries and returns and the sequence number of the copied message. So the service's duplicate
// detection drops a message that is sent twice, and keeps a copy that returns.
//
// A header has at most 32 KiB, and all together 64 KiB. Limits report 32 KiB for all, so that fault
// headers are trimmed to that. A message has at most [Transport].MaxMessageSize, 16 KiB of which
// are reserved for headers. A TTL over 49 days is no TTL.
package asb
