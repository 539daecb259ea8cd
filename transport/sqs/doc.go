// Package sqs connects endpoints to Amazon SQS, with Amazon SNS for what they publish.
//
// # Delivery
//
// Messages come over standard queues: at least once, in no promised order. Each hand-out hides its message from
// others for [Transport].Lease, which the endpoint renews for everything that it holds, ten messages in a request, up
// to the twelve hours that SQS allows; then, and whenever a lease is lost, the handler's context ends. Settling
// a hand-out whose lease is over fails with [transport.ErrLeaseLost] and sends nothing.
//
// Completions leave together: ten of them, those of everything that is held, or what has gathered in 20 ms. A message
// that was completed too late, or that SQS hands out once more after it was deleted, is recognised by the process that
// completed it and deleted without being handled again.
//
// SQS counts hand-outs exactly (ApproximateReceiveCount), those that were given back untouched too. So nothing is
// received that no handler is free for, and what was received is handled before an endpoint stops.
//
// # Waiting
//
// Receive never takes more messages from SQS than its limit: a request asks for that many, and for ten at most. It
// polls for up to 20 s; an endpoint without messages makes three requests a minute. When a receiver closes, a poll that
// waits is broken off. A message that SQS hands to it in that very moment comes again when its lease is over, with an
// attempt used up.
//
// # Requests that fail
//
// The SDK tries a request up to three times, with pauses of up to 2 s, when AWS throttles, answers 5xx or cannot be
// reached, unless [Transport].Config has a Retryer. Throttled sends are repeated a second apart instead: from a
// throttle until a success a connection sends at most one request a second, and from a denial as well, to the same
// queue or topic. Only Receive is tried once, because the endpoint tries again itself, with growing pauses. Entries of
// a batch that AWS failed are sent once more, each by itself. A send that may have arrived all the same fails with
// [transport.ErrOutcomeUnknown].
//
// # Addresses
//
// The queue of "Shop.Billing" is "Shop-Billing", with [Transport].QueuePrefix before it: what is not a letter, a digit,
// "-" or "_" becomes "-", as with NServiceBus. A name of over 80 characters is an error. A send to a queue that does
// not exist fails with [transport.ErrNoQueue].
//
// # Messages
//
// Messages travel in the envelope of NServiceBus, a JSON object with Headers and a Body in base64, or, with
// [Transport].RawBody, with the body as it is and the headers in the message attribute NServiceBus.AmazonSQS.Headers.
// Both are read, whatever is written. A message of another producer is its body, with its text attributes as headers;
// MessageTypeFullName names its type, and SQS's message id is its id. What SQS takes no characters for is escaped or
// encoded.
//
// Bodies that NServiceBus has put into S3 are not fetched: such a message is undecodable, and goes to the error queue.
//
// A message may have 1 MiB with everything that belongs to it, or what its queue's MaximumMessageSize says, and one
// that is published 256 KiB, or what its topic's says. Headers take up to 64 KiB of that, and an envelope makes a body
// larger by a third. A copy of a received message that has no room in its configured form is sent with the body as it
// came, or compressed by gzip in a message attribute.
//
// The TTL of a message is looked at when it is received, by the clocks of SQS and of the receiver.
package sqs
