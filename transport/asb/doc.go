// Package asb connects endpoints to Azure Service Bus, over AMQP 1.0 with Microsoft's client.
//
// # Delivery
//
// Messages are received under a lock that the endpoint renews, and completed after they are handled: at least once. The
// service has no transaction over receiving and sending that the client offers: what a handler sends leaves before its message is
// completed, and leaves twice when the process dies in between. A settle over a lock that has run out fails with
// [transport.ErrLeaseLost] and cannot hit a newer delivery. Where the service lets a lock outlive its connection, the message is
// settled by the lock's token over the next one; else it is delivered again.
//
// The service counts deliveries. A process tests with its first message whether a lock outlives its link, and calls the count
// exact where it does: a delivery that ended by a crash then counts when its lock runs out. Deliveries of dead letters are not counted. Release
// counts as an attempt: the client has no verb that returns a message without.
//
// What the service hands out more often than [Transport].MaxDeliveryCount goes to the queue's dead letters, and from there a running
// endpoint moves it to its error queue, with the service's reason.
//
// # Addresses
//
// A send goes to the queue of that name and fails with [transport.ErrNoQueue] where there is none. A publish goes to a topic
// as [Topology] says, and to nobody where that is missing: who subscribes creates it. The names of queues make no
// difference between capitals and small letters. "QUEUE/$DeadLetterQueue" is received from like a queue.
//
// Queues and topics are created and subscribed to with the right to manage the namespace. Without it what exists is used, and an
// error says what is missing.
//
// # Delays
//
// Delayed messages are scheduled at the service, for as long as wanted, and can be called back. A delayed retry is a scheduled copy,
// sent before the original is completed: both are there when the process dies in between. A TTL counts from when the message is due.
//
// # Messages
//
// Headers travel as application properties, with the names and properties that NServiceBus uses. What other producers put
// there becomes text: bytes as they are, numbers and booleans as in Go, times in the form of package header. The properties
// content-type, reply-to and correlation-id fill in for headers that are missing. The id is the header's, or the property's, or
// made of the message's place in the queue: the same each time it is handed out.
//
// The service's message id is the message's id, followed for copies by the delayed retries, the returns and the number of the message
// that it is a copy of: so a message that is sent twice is one for the service's duplicate detection, and
// a copy that comes back is none.
//
// A header has at most 32 KiB, and all together 64 KiB; Limits say 32 KiB for all, so that fault headers are trimmed to that. A
// message has [Transport].MaxMessageSize at most, 16 KiB of which are kept for headers. A TTL over 49 days is no TTL.
package asb
