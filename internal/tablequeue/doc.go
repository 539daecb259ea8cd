// Package tablequeue is the lease engine under the transports that keep their
// queues in database tables.
//
// A message is a row. Receiving claims a batch of rows in one statement: the
// count of hand-outs goes up, the moment the row is visible again moves ahead by
// the lease, and the row gets the claim's lease number. Every later statement on the
// row names that number, so that one that comes too late hits nothing. A delayed
// message is a row that becomes visible later, in its destination's table; nothing
// moves it. All time is the database's.
//
// What many goroutines settle and send at once goes to the database in few
// statements: a [Conn] gathers it and hands it to the [Store] as units, each of which
// happens whole or not at all. A unit that the database refuses is bisected out.
//
// The engine is [Conn]; what a database has to do for it is [Store].
package tablequeue
