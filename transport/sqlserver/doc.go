// Package sqlserver is the transport on Microsoft SQL Server and Azure SQL, with queues kept in
// tables. It has NOT been exercised against a SQL Server: its statements are held by tests without
// one, and the conformance suite waits for a server (make test-mssql).
//
// A queue is a table, as in package postgres: a message is a row that is claimed for a while and
// deleted when it has been handled, and attempts are counted in the row. SQL Server notifies no
// process of new rows: a message from another process is found within half a second, one of the
// same process at once.
//
// With the transaction mode SendsAtomicWithReceive a handler's own writes, the messages it sends
// and the completion of the message it handles are one transaction: [Tx] returns it. As the outbox
// of an endpoint on another broker, the transport records handled messages in the handler's
// transaction instead. Outside handlers, endpoint.In(tx) sends in a *sql.Tx of
// github.com/microsoft/go-mssqldb on the same database.
//
// The tables are made by the endpoint's installer, or by the text that [Transport.Script] returns.
//
// Queue tables of NServiceBus's SQL Server transport can be sent to, and listed and emptied by
// tools. Its senders can insert into the tables of this package, and its receivers can read them.
// [Transport.SubscriptionRouting] shares its table of subscriptions, and [Transport.Adopt] takes
// its queue tables over.
package sqlserver
