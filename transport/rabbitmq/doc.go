// Package rabbitmq connects endpoints to RabbitMQ, 3.10 or newer, over AMQP 0-9-1.
//
// # Delivery
//
// Messages are sent persistent, with publisher confirms, and acknowledged after they are handled:
// at least once. A message is redelivered when its connection is lost before the acknowledgement
// has arrived; settling the older delivery then fails with [transport.ErrLeaseLost] and cannot
// settle the newer one.
//
// Acknowledgements are written together where that is safe, at most 5 ms late.
//
// Quorum queues count deliveries exactly. Classic queues report only that there was an earlier one:
// such a message has the attempt number 2, not exact. A lost connection counts as an attempt for
// every unsettled message, and before RabbitMQ 4.3 Release counts too.
//
// The endpoint's own quorum queues have a delivery limit far above the number of attempts
// ([Transport].DeliveryLimit). A message that exceeds it is not dropped but moved to the queue
// "<endpoint>.dead-letters" and from there to the error queue, with the broker's reason. A queue
// that was created otherwise is used as it is.
//
// # Addresses
//
// A send addresses the queue of that name and fails with [transport.ErrNoQueue] where there is
// none. A publish is routed by the exchanges of the topology, and may reach no queue.
//
// In the conventional topology a type "Shop.OrderPlaced" has the fanout exchange
// "Shop:OrderPlaced", bound to the exchanges of its base types; an endpoint has an exchange and a
// queue of its own name. In the direct topology there is one topic exchange, and the routing key is
// the types' names, the most general first, with "-" for each dot:
// "Shop-IOrderEvent.Shop-OrderPlaced". Names and keys are NServiceBus's where the base types are
// declared in the reverse of its order: base classes before interfaces in the key.
//
// Publishing a type for the first time after connecting declares its exchanges; without the right
// to configure, those that exist are used.
//
// # Delays
//
// Delayed messages wait in a ladder of 28 quorum queues, holdfast.delay-level-00 to -27, one for
// each power of two seconds: up to 8.5 years, rounded up to whole seconds. Install creates it, or
// the first delayed message does; all endpoints of a virtual host share it. A message whose queue
// was deleted while it waited delays no other and is kept in the queue holdfast.delay-lost. Delays
// cannot be cancelled. The TTL of a delayed message counts from when it is due, by the clocks of
// sender and receiver.
//
// # Messages
//
// Headers are sent as strings in the header table. Values of other producers are decoded as text:
// bytes unchanged, numbers and booleans as in Go, times in the form of package header, lists and
// tables as JSON. The properties type, content-type, reply-to, correlation-id and message-id stand
// in for headers that are missing. A message without any id has one made of its content: the same
// at each delivery, but also for another message with the same content. [Transport].Translate may
// set another. Native has the other properties, and [transport.Operation].Properties sets them,
// under the names of the constants of this package.
//
// The broker does not report how large a message may be. Its default is assumed: 16 MiB from
// RabbitMQ 4.0, 128 MiB before. All headers have to fit into a frame, 128 KiB. A TTL is rounded up
// to milliseconds; one over 49 days is no TTL.
package rabbitmq
