// Package sqlite keeps queues in one file: durable messaging without a broker, for one or several
// processes of the same machine. It is built on modernc.org/sqlite, so it needs no cgo.
//
// # What is in the file
//
// Messages are rows of holdfast_messages, whatever their queue; holdfast_queues and
// holdfast_subscriptions say which queues there are and which subscribe to which types. The ids of
// handled messages, where an endpoint keeps them, are in holdfast_handled, and the names of its
// inboxes in holdfast_inboxes. Open and Install create missing parts, and newer versions of this
// package migrate older files. The tables can be read, and messages inserted, with plain SQL:
//
//	insert into holdfast_messages (queue, headers, body)
//	values ('billing', '{"NServiceBus.EnclosedMessageTypes":"Shop.ChargeOrder"}', '{"order":7}')
//
// The rest of the file, PRAGMA user_version included, is yours: keep your own tables beside
// the queues, and a handler's writes to them can be one with the completion of its message:
// see [OnCommit]. Open the file for yourself with the same driver:
//
//	db, err := sql.Open("sqlite", "file:orders.db?_txlock=immediate&_busy_timeout=5000")
//
// Outside handlers, endpoint.In(tx) sends in a *sql.Tx of such a connection, of whatever driver:
// the message is there when the transaction commits, and never otherwise.
//
// Only one transaction at a time can write to a file, in all processes together. Keep yours
// short: while one is open, no message is received, completed or sent. A reading transaction
// blocks no other process, but while it is open the file orders.db-wal beside the database grows.
//
// # What is promised
//
// A message is delivered at least once, and its attempts are counted exactly, also over processes
// that are killed. With [OnCommit] a handler's writes happen exactly once. Whatever a call has
// returned success for survives a killed process. What was sent, completed and written survives a
// power failure too, because such commits wait for the disk, unless Transport.Relaxed is set; how
// much the disk really keeps is between it and the operating system. A power failure may undo the
// last deliveries, so that their attempts are not counted.
//
// Messages are leased: a process that is killed keeps its messages from others until
// Transport.Lease has run out.
//
// Time is the machine's wall clock. A clock that is adjusted gradually has no effect. A step by
// more than 5 s is found by the next look for messages, and logged:
//
//   - After a step forward by more than a lease all leases are over, so that messages which are
//     being handled are delivered once more. Delayed messages arrive earlier by the step.
//   - After a step back the messages that were ready are made ready again. Delayed messages arrive
//     later by the step. Leases are shortened by the step if the step is longer than four leases.
//     After a shorter step, a killed process keeps its messages for longer by the step.
//   - A process that has not looked for messages in the minute before a step back does not find
//     the step. A message that is delayed after a step back, and before every process has found
//     the step, may arrive early.
//
// # What it needs
//
// A local disk: the processes share memory through a file beside the database, which network file
// systems do not offer. Write permission on the file and on its directory. The file must not be
// removed or replaced, or those beside it, while a process has it open. And no program may open and
// close it with os.Open while it uses this package, for instance to copy it: on Unix, that takes
// away the locks of the whole process. "vacuum into 'copy.db'" makes a copy.
package sqlite
