// Package endpointtest runs handlers in tests, without a broker.
//
// [Handle] processes a message by a real endpoint on the in-memory transport, and returns the
// outcome: the sent messages, and whether the message was completed, retried, delayed or moved to
// the error queue. Behaviors, routes, serializers and recoverability are those of the
// configuration, and work as in production.
//
// It takes no time beyond that of the handlers, and works inside and outside of a testing/synctest
// bubble.
package endpointtest
