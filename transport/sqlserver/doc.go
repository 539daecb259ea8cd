// Package sqlserver has [Postgres], which was run against a real PostgreSQL 15, and [MSSQL], which has NOT
// been exercised against a SQL Server; it is the transport for SQL servers, with queues kept in tables.
//
// A queue is a table: a message is inserted into it, claimed for a
// while by whoever receives it, and deleted when it has been handled. A delayed message is
// a row that becomes visible later; a published one is inserted into the table of every
// subscriber. Attempts are counted in the row, exactly, over any number of processes and
// their crashes; a crash of the server itself may forget those of its last moment, as claims do
// not wait for the disk. Sends and completions do.
//
// With the transaction mode SendsAtomicWithReceive a handler's own writes, the messages it sends
// and the end of the message it handles are one transaction: [Tx] gives it.
//
// Outside handlers, endpoint.In(tx) sends in a pgx.Tx on the same database, whatever pool or
// exec mode it is of: the message is there when the transaction commits, and never otherwise. Its user
// needs insert and select on the tables that are sent to.
//
// What this page says of transactions and of the server is about PostgreSQL. With [MSSQL] it is [SQLTx] that
// gives a handler its *sql.Tx, endpoint.In takes one of github.com/microsoft/go-mssqldb, and other
// processes find new messages by looking, every half second at the latest.
//
// # What it asks of the server
//
// The tables are made by the endpoint's installer, which brings those of an earlier version up to
// date too, or by what [Postgres.Script] prints. Afterwards the user needs select, insert, update and
// delete on them, and no more. Each process holds up to four connections for its own
// statements, one that listens for notifications, and one per handler's transaction. The first
// four set planner options when they start; behind a proxy that pools transactions, set
// [Postgres.Pooled].
//
// # Beside NServiceBus
//
// Queue tables of NServiceBus's PostgreSQL transport can be sent to, though not with a delay; its
// senders can insert into ours; and [Postgres.SubscriptionRouting] shares its table of subscriptions.
package sqlserver
