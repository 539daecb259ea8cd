// Package endpoint runs message handlers: it receives from a queue, pushes each message through the
// pipeline to the handlers of its type, sends what they sent and settles the message; when
// something fails, it retries at once, later, or moves the message to the error queue.
//
// An endpoint is made of a [Config], a struct of data, by [New], which checks everything and does
// no I/O, and lives as long as [Endpoint.Run].
package endpoint
