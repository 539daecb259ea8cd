// Package tablequeue is the lease engine under the transports that keep their
// queues in database tables.
//
// A message is a row. Receiving claims a batch of rows in one statement, which increments their
// delivery count, makes them invisible for the lease, and gives them the number of the claim. Every
// later statement on a row names that number, so that a late one hits no row. A delayed message is
// a row in the table of its destination that becomes visible later. All time is the database's.
//
// A [Conn] gathers the messages that goroutines settle and send at the same time, and passes them
// to the [Store] in batches of units, each of which is atomic. It bisects a batch that the database
// refuses, until only the refused units fail.
//
// The engine is [Conn]. It consists of parts for sending, settling, recording and so on, which share
// one core. A part has the parts that it needs as fields. No part refers to the Conn.
//
// A database's dialect is a [Store]. A field of the Store is nil if the dialect lacks the part. The
// engine finds no part by a type assertion.
package tablequeue
