package endpoint

// The names of the functions of the program that the watch counts beside handlers: see
// [overdue.Call.EnterFunction]. A key function has the name of its handler, and
// package process has the names of others.
var (
	nameDecode   = "the decoding of the message"
	nameDispatch = "a behavior of stage Dispatch"
	nameRelay    = "a behavior of stage Relay"
)
