// Package endpointtest runs handlers in tests, without a broker.
//
// [Handle] gives a message to a real endpoint on the in-memory transport and tells what
// became of it: what was sent, and whether the message was completed, retried, delayed or
// moved to the error queue. Behaviors, routes, serializer and recoverability are those of the
// given configuration, and work as in production.
//
// It takes no time beyond that of the handlers, and works inside a testing/synctest bubble as
// well as outside.
package endpointtest
