// Package sqs connects endpoints to Amazon SQS, and to Amazon SNS for published messages.
//
// # Delivery
//
// Messages are received from standard queues: at least once, in no guaranteed order. Each delivery
// hides its message from others for [Transport].Lease. The endpoint renews the leases of its
// messages, ten in a request, up to SQS's limit of twelve hours; then, and whenever a lease is
// lost, the handler's context ends. Settling a delivery whose lease is over fails with
// [transport.ErrLeaseLost] and sends nothing.
//
// Completions share requests. A request is sent when it has ten of them, when every received
// message is being settled, or after 20 ms. A process recognizes a message that it has completed
// too late, or that SQS delivers again although it was deleted, and deletes it without handling it
// again.
//
// SQS counts deliveries exactly (ApproximateReceiveCount), also those that were returned unhandled.
// So the driver receives only messages that a handler is free for, and the endpoint handles them
// before it stops.
//
// # Receiving
//
// A poll requests as many messages as the caller of Receive, and ten at most. It waits up to 20 s
// for messages, so an idle endpoint sends three requests a minute. Closing a receiver cancels its
// waiting poll. A message that SQS delivers to the poll at that moment is delivered again after its
// lease, as the next attempt.
//
// # Failed requests
//
// The SDK tries a request up to three times, with pauses of up to 2 s, if AWS throttles, answers
// 5xx or cannot be reached, unless [Transport].Config has a Retryer. From a throttled send until a
// successful one a connection sends at most one request a second; after a denial this holds for the
// queue or topic. A receive is tried once, because the endpoint repeats it with growing pauses.
// Entries of a batch that AWS failed are sent once more, each by itself. A send that may have been
// carried out fails with [transport.ErrOutcomeUnknown].
//
// # Addresses
//
// The queue of "Shop.Billing" is "Shop-Billing", with [Transport].QueuePrefix before it: each
// character that is not a letter, a digit, "-" or "_" becomes "-", as with NServiceBus. A name of
// over 80 characters is an error. A send to a queue that does not exist fails with
// [transport.ErrNoQueue].
//
// # Messages
//
// Messages are sent in the envelope of NServiceBus, a JSON object with Headers and a Body in
// base64, or, with [Transport].RawBody, with the unchanged body and the headers in the message
// attribute NServiceBus.AmazonSQS.Headers. Both are read whatever is configured. In a message of
// another producer the text attributes are headers, MessageTypeFullName is the type, and SQS's
// message id is the id. Characters that SQS refuses are escaped or encoded.
//
// Bodies that NServiceBus has stored in S3 are not fetched: such a message is undecodable, and is
// moved to the error queue.
//
// A message may have 1 MiB with its attributes, or the MaximumMessageSize of its queue, and a
// published one 256 KiB, or the limit of its topic. Up to 64 KiB of that are headers, and an
// envelope makes a body larger by a third. A copy of a received message that is too large in the
// configured form is sent with the unchanged body, or with the body compressed by gzip in a message
// attribute.
//
// The TTL of a message is checked when it is received, by the clocks of SQS and of the receiver.
package sqs
