// Package rabbitmq connects endpoints to RabbitMQ, 3.10 or newer, over AMQP 0-9-1.
//
// # Delivery
//
// Messages are sent persistent, with publisher confirms, and acknowledged after
// they are handled: at least once. A message is handed out again when its connection is
// lost before the acknowledgement has arrived; settling the older hand-out then fails
// with [transport.ErrLeaseLost] and cannot hit the newer one.
//
// Acknowledgements leave together where that is safe and wait at most 5 ms for it.
//
// Quorum queues count hand-outs exactly. Classic queues only tell that there was an
// earlier one: such a message is given the attempt number 2, not exact. A lost connection
// counts as an attempt for every message held, and before RabbitMQ 4.3 Release counts too.
//
// The endpoint's own quorum queues have a delivery limit far above what the endpoint lets
// happen ([Transport].DeliveryLimit). What exceeds it is not dropped but kept in the queue
// "<endpoint>.dead-letters" and moved from there to the error queue, with the broker's reason. A queue that
// was created otherwise is used as it is.
//
// # Addresses
//
// A send goes to the queue of that name and fails with [transport.ErrNoQueue] where
// there is none. A publish goes through the exchanges of the topology, and may reach nobody.
//
// In the conventional topology a type "Shop.OrderPlaced" has the fanout exchange
// "Shop:OrderPlaced", bound to the exchanges of its base types; an endpoint has an exchange and a
// queue of its own name. In the direct topology there is one topic exchange, and the routing key is the
// types' names, the most general first, with "-" for each dot: "Shop-IOrderEvent.Shop-OrderPlaced".
// Names and keys are NServiceBus's where the base types are declared in the reverse of the order that
// it goes by: base classes before interfaces in the key.
//
// Publishing a type for the first time after connecting declares its exchanges; who has no right to
// configure uses what is there.
//
// # Delays
//
// Delayed messages wait in a ladder of 28 quorum queues, holdfast.delay-level-00 to -27, one for each
// power of two seconds: up to 8.5 years, rounded up to whole seconds. Install creates it, or the first
// delayed message does; all endpoints of a virtual host share it. A message whose queue was deleted while it
// waited holds up no other and is kept in the queue holdfast.delay-lost. Delays cannot be called back.
// The TTL of a delayed message counts from when it is due, by the clocks of sender and receiver.
//
// # Messages
//
// Headers travel as strings in the header table. What other producers put there becomes
// text: bytes as they are, numbers and booleans as in Go, times in the form of
// package header, lists and tables as JSON. The properties type, content-type,
// reply-to, correlation-id and message-id fill in for headers that are missing. A message
// without any id is given one made of its content: the same each time it is handed
// out, but also for another message with the same content. [Transport].Translate may give it another.
// Native has what other properties say, and [transport.Operation].Properties sets them, under the names of
// the constants of this package.
//
// The broker does not tell how large a message may be. Its default is assumed: 16 MiB
// from RabbitMQ 4.0, 128 MiB before. All headers have to fit into a frame, 128 KiB.
// A TTL is rounded up to milliseconds; one over 49 days is no TTL.
package rabbitmq
