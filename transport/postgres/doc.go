// Package postgres is the transport on PostgreSQL, with queues kept in tables.
//
// A queue is a table: a message is inserted into it, claimed for a while by the receiver that takes
// it, and deleted when it has been handled. A delayed message is a row that becomes visible later;
// a published one is inserted into the table of every subscriber. Attempts are counted in the row,
// exactly, over any number of processes and their crashes. A crash of the server itself may forget
// the attempts of its last moment, as claims do not wait for the disk. Sends and completions do.
//
// With the transaction mode SendsAtomicWithReceive a handler's own writes, the messages it sends
// and the completion of the message it handles are one transaction: [Tx] returns it.
//
// Outside handlers, endpoint.In(tx) sends in a pgx.Tx on the same database, of any pool and any
// exec mode, or in a [sql.Tx] of any driver: the message is there when the transaction commits, and
// never otherwise. Its user needs insert on the tables that are sent to, and select for delayed
// messages, which have a receipt. After an error, roll back: the server may have ended the
// transaction.
//
// # What it asks of the server
//
// The tables are made by the endpoint's installer, which migrates those of an earlier version, or
// by the text that [Transport.Script] returns. Afterwards the user needs select, insert, update and
// delete on them, and no more. Each process holds up to five connections for its own statements,
// one that listens for notifications, and one per transaction of a handler. The first five set
// planner options when they start; behind a proxy that pools transactions, set [Transport.Pooled].
// With a pool of the caller's, [Transport.Pool], the driver adds only the connections that listen
// and renew leases.
//
// # Beside NServiceBus
//
// Queue tables of NServiceBus's PostgreSQL transport can be sent to, though not with a delay; its
// senders can insert into the tables of this package; and [Transport.SubscriptionRouting] shares
// its table of subscriptions.
package postgres
